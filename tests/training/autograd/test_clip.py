"""Clipping: as torch clips the same gradients when they are dense."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from logitsieve.training import UniformSoftmax, clip_grad_norm_
from tests.training.loss_kit import doubles


def gradients(sparse: bool, times: int = 1) -> list[nn.Parameter]:
    """Parameters of a layer and a loss, with gradients of `times` batches added up."""
    torch.manual_seed(1)
    layer = nn.Linear(4, 4)
    criterion = UniformSoftmax(4, 20, n_sampled=5, sparse=sparse)
    for step in range(times):
        criterion(
            layer(doubles(6, 4, seed=step).float()), torch.tensor([1, 2, 3, 1, 1, 9])
        ).backward()
    return [*layer.parameters(), *criterion.parameters()]


def dense(parameters: list[nn.Parameter]) -> list[Tensor]:
    return [p.grad.to_dense() for p in parameters if p.grad is not None]


@pytest.mark.parametrize("norm_type", [2.0, 1.0, float("inf")])
@pytest.mark.parametrize("max_norm", [1e-3, 1e3])
@pytest.mark.parametrize("times", [1, 3])
def test_it_clips_as_torch_does(norm_type: float, max_norm: float, times: int) -> None:
    mixed, plain = gradients(True, times), gradients(False, times)
    got = clip_grad_norm_(iter(mixed), max_norm, norm_type)
    expected = nn.utils.clip_grad_norm_(plain, max_norm, norm_type)
    torch.testing.assert_close(got, expected)
    for one, other in zip(dense(mixed), dense(plain), strict=True):
        torch.testing.assert_close(one, other)


def test_one_tensor_and_none() -> None:
    parameter = gradients(True)[2]
    assert float(clip_grad_norm_(parameter, 1e-3)) > 1e-3
    torch.testing.assert_close(dense([parameter])[0].norm(), torch.tensor(1e-3))
    assert float(clip_grad_norm_([nn.Parameter(torch.zeros(2))], 1.0)) == 0


def test_a_norm_that_is_not_finite_is_raised_if_asked() -> None:
    parameters = gradients(True)
    assert parameters[2].grad is not None
    parameters[2].grad._values().fill_(torch.inf)
    with pytest.raises(RuntimeError, match="non-finite"):
        clip_grad_norm_(parameters, 1.0, error_if_nonfinite=True)
