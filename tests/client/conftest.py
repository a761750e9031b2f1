from collections.abc import Callable
from typing import Any

import pytest

from tests.client import tiny_models

MODELS: dict[str, Callable[[], Any]] = {
    "gpt2": tiny_models.gpt2,
    "marian": tiny_models.marian,
    "bart": tiny_models.bart,
    "t5": tiny_models.t5,
}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> Any:
    return MODELS[request.param]()


@pytest.fixture(scope="module")
def language_model() -> Any:
    return tiny_models.gpt2()
