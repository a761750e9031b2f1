"""A plan's runner: errors while it is made and when it runs, and batches of few rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from logitsieve.api.errors import DeviceExhausted, DeviceLost
from logitsieve.gpu.plans import LaunchPlan, empty_output
from logitsieve.gpu.plans.exact import ExactPlan
from logitsieve.gpu.runner import GpuArrays, PlanRunner
from logitsieve.heads import ExactHead
from logitsieve.utils.stored import StoredMatrix
from tests.gpu.test_device import EXHAUSTED, GPU
from tests.synthetic import make_hidden, make_softmax

LOST = [
    torch.AcceleratorError("CUDA error: unspecified launch failure\nCUDA kernel errors", 719),
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
]
OTHERS = [RuntimeError("mat1 and mat2 shapes cannot be multiplied"), KeyError("CUDA error")]


class Failing:
    """A plan that fails at its `after`-th run."""

    def __init__(self, hidden: Tensor, error: Exception, after: int = 1) -> None:
        self.hidden, self.output = hidden, empty_output(len(hidden), 3, hidden.device)
        self._error, self._left = error, after

    def run(self) -> None:
        self._left -= 1
        if self._left <= 0:
            raise self._error


def nothing_more(plan: object) -> None:
    """These plans read hidden alone."""


def failing(error: Exception, after: int = 1) -> Callable[[Tensor], LaunchPlan]:
    return lambda hidden: Failing(hidden, error, after)


@pytest.mark.parametrize("error", EXHAUSTED, ids=str)
def test_memory_that_ends_is_told_while_a_plan_is_made_and_when_it_runs(error: Exception) -> None:
    def made(hidden: Tensor) -> LaunchPlan:
        raise error

    for plan in (made, failing(error)):
        with pytest.raises(DeviceExhausted, match=f"^{GPU.device}: out of memory$") as caught:
            PlanRunner(GPU, plan, 2)
        assert caught.value.__cause__ is error


@pytest.mark.parametrize("error", LOST, ids=str)
def test_a_lost_gpu_is_told_by_arrays_and_by_tensors(error: Exception) -> None:
    runner, room = PlanRunner(GPU, failing(error, after=2), 2), empty_output(2, 3, GPU.device)
    with pytest.raises(DeviceLost) as caught:
        runner.answer(np.zeros((2, 8), np.float32), room, nothing_more)
    assert str(caught.value) == f"{GPU.device}: {str(error).splitlines()[0]}"
    with pytest.raises(DeviceLost):
        runner.answer(torch.zeros(2, 8), room, nothing_more)


@pytest.mark.parametrize("error", OTHERS, ids=str)
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        PlanRunner(GPU, failing(error), 1)
    assert caught.value is error


def test_a_gpu_that_has_no_room_for_w_says_so() -> None:
    softmax = make_softmax(64, 8)

    class Full:
        bias = softmax.bias

        @property
        def matrix(self) -> StoredMatrix:
            raise EXHAUSTED[0]

    with pytest.raises(DeviceExhausted):
        GpuArrays(GPU.device, Full(), {}, dict)  # type: ignore[arg-type]


@pytest.mark.parametrize("tensors", [False, True])
def test_fewer_rows_than_the_plan_holds_and_others_after_them(tensors: bool) -> None:
    runner = PlanRunner(GPU, lambda hidden: ExactPlan(GPU.matrix, hidden, 2), 4)
    for rows in (3, 1):
        hidden = make_hidden(rows, 8, seed=rows)
        device = GPU.device if tensors else torch.device("cpu")
        output = empty_output(rows, 2, device)
        given = torch.from_numpy(hidden).to(GPU.device) if tensors else hidden
        runner.answer(given, output, nothing_more)
        top = ExactHead(GPU.softmax).topk(hidden, 2)
        for mine, theirs in zip(output, top, strict=True):
            np.testing.assert_array_equal(mine.cpu().numpy(), theirs)


def test_what_is_kept_is_made_once() -> None:
    made: list[int] = []
    assert GPU.kept("number", lambda: made.append(1) or 7) == 7  # type: ignore[func-returns-value]
    assert GPU.kept("number", lambda: 8) == 7
    assert made == [1]
