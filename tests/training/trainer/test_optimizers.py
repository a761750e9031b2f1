from __future__ import annotations

import pytest
import torch

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.trainer import TrainConfig
from logitsieve.training.trainer.config import ADAGRAD_LR
from logitsieve.training.trainer.optimizers import loss_optimizer, lr_factor, make_optimizer


@pytest.mark.parametrize("schedule", ["cosine", "linear"])
def test_the_rate_rises_and_falls_to_nothing(schedule: str) -> None:
    config = TrainConfig(schedule=schedule, warm_up=0.1)  # type: ignore[arg-type]
    rates = [lr_factor(config, step, 100) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * step for step in range(1, 11)])
    assert rates[10] == 1
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert 0 < rates[-1] < 0.02


def test_a_constant_rate() -> None:
    config = TrainConfig(schedule="constant", warm_up=0)
    assert {lr_factor(config, step, 3) for step in range(3)} == {1.0}


@pytest.mark.parametrize("name", ["sparse-adam", "adagrad", "sgd"])
def test_what_takes_sparse_gradients(name: str) -> None:
    config = TrainConfig(head_optimizer=name)  # type: ignore[arg-type]
    assert loss_optimizer(config, sparse=True) == name
    weight = torch.nn.Parameter(torch.zeros(4, 2))
    weight.grad = torch.sparse_coo_tensor(
        torch.tensor([[2]]), torch.ones(1, 2), (4, 2), check_invariants=True
    )
    with torch.sparse.check_sparse_tensor_invariants(True):  # type: ignore[no-untyped-call]
        make_optimizer(name, [weight], 0.1, config).step()
    assert (weight != 0).any(dim=1).tolist() == [False, False, True, False]


def test_the_kind_of_gradients_decides() -> None:
    assert loss_optimizer(TrainConfig(head_optimizer="auto"), sparse=True) == "sparse-adam"
    assert loss_optimizer(TrainConfig(head_optimizer="auto"), sparse=False) == "adamw"
    for name, sparse in (("adamw", True), ("sparse-adam", False)):
        config = TrainConfig(head_optimizer=name)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequest, match="head_optimizer: got"):
            loss_optimizer(config, sparse=sparse)


def test_the_heads_learning_rate_is_its_optimizers() -> None:
    assert TrainConfig().lr_of_loss == ADAGRAD_LR
    assert TrainConfig(lr=0.01, head_optimizer="auto").lr_of_loss == 0.01
    assert TrainConfig(head_lr=0.5).lr_of_loss == 0.5
