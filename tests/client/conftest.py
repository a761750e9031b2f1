from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.client import tiny_models

MODELS: dict[str, Callable[[], Any]] = {
    "gpt2": tiny_models.gpt2,
    "marian": tiny_models.marian,
    "bart": tiny_models.bart,
    "t5": tiny_models.t5,
}


@pytest.fixture(autouse=True, scope="session")
def one_torch_thread() -> Iterator[None]:
    """Models this small lose ten times what they gain by a second thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> Any:
    return MODELS[request.param]()


@pytest.fixture(scope="module")
def language_model() -> Any:
    return tiny_models.gpt2()
