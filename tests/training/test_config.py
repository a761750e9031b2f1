"""Options of a training, and their ranges."""

from typing import Any

import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.config import TrainConfig


@pytest.mark.parametrize(
    ("name", "value"), [("dim", 0), ("dropout", 1.0), ("words", 0.5), ("head_lr", -1)]
)
def test_an_option_out_of_range_is_named(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"{name}: got") as caught:
        TrainConfig(**{name: value})
    assert caught.value.field == name
