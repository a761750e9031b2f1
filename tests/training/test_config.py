"""Options of a training, and their ranges."""

from __future__ import annotations

from typing import Any

import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.config import ADAGRAD_LR, TrainConfig


@pytest.mark.parametrize(
    ("name", "value"),
    [("head_optimizer", "adam"), ("dim", 0), ("dropout", 1.0), ("words", 0.5)],
)
def test_an_option_out_of_range_is_named(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"{name}: got") as caught:
        TrainConfig(**{name: value})
    assert caught.value.field == name


def test_the_losss_learning_rate_is_that_of_its_optimizer() -> None:
    assert TrainConfig().lr_of_loss == ADAGRAD_LR
    assert TrainConfig(lr=0.01, head_optimizer="sgd").lr_of_loss == 0.01
    assert TrainConfig(head_lr=0.5).lr_of_loss == 0.5
