"""What goes wrong on a GPU has a name of ours, whoever says it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from logitsieve.api.errors import DeviceExhausted, DeviceLost
from logitsieve.gpu.device import device_named, memory_of, translated
from logitsieve.gpu.heads import GpuArrays
from logitsieve.gpu.plans import LaunchPlan, empty_output
from logitsieve.gpu.runner import PlanRunner, spent_ns
from tests.synthetic import make_softmax

GPU = GpuArrays(device_named("cuda"), make_softmax(64, 8), {}, dict)
EXHAUSTED = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    torch.AcceleratorError("CUDA error: out of memory", 2),
    RuntimeError("Triton Error [CUDA]: out of memory"),
]
LOST = [
    torch.AcceleratorError("CUDA error: unspecified launch failure\nCUDA kernel errors", 719),
    RuntimeError("CUDA error: an illegal memory access was encountered"),
    RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered"),
]
OTHERS = [RuntimeError("mat1 and mat2 shapes cannot be multiplied"), KeyError("CUDA error")]


class Failing:
    """A plan that fails at its `after`-th run."""

    def __init__(self, hidden: Tensor, error: Exception, after: int = 1) -> None:
        self.hidden, self.found = hidden, empty_output(len(hidden), 3, hidden.device)
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
    runner = PlanRunner(GPU, failing(error, after=2), 2)
    with pytest.raises(DeviceLost) as caught:
        runner.answer_host(np.zeros((2, 8), np.float32), nothing_more)
    assert str(caught.value) == f"{GPU.device}: {str(error).splitlines()[0]}"
    with pytest.raises(DeviceLost):
        runner.answer(torch.zeros(2, 8), empty_output(2, 3, GPU.device), nothing_more)


@pytest.mark.parametrize("error", OTHERS, ids=str)
def test_other_errors_stay_what_they_are(error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        PlanRunner(GPU, failing(error), 1)
    assert caught.value is error


def test_what_ends_a_capture_is_what_went_wrong_within_it() -> None:
    error = RuntimeError("CUDA error: operation failed due to a previous error during capture")
    error.__context__ = EXHAUSTED[0]
    assert isinstance(translated(error, "cuda:0"), DeviceExhausted)
    error.__context__ = None
    assert isinstance(translated(error, "cuda:0"), DeviceLost)


def test_a_gpu_that_has_no_room_for_w_says_so() -> None:
    softmax = make_softmax(64, 8)

    class Full:
        bias = softmax.bias

        @property
        def stored(self) -> np.ndarray:
            raise EXHAUSTED[0]

    with pytest.raises(DeviceExhausted):
        GpuArrays(GPU.device, Full(), {}, dict)  # type: ignore[arg-type]


def test_without_a_gpu_there_is_neither_memory_nor_time_to_tell() -> None:
    before = spent_ns()
    if GPU.graphs:
        memory = memory_of(GPU.device)
        assert memory is not None
        assert 0 < memory.used <= memory.total
    else:
        assert memory_of(GPU.device) is None
    assert translated(ValueError("anything"), "cuda:0") is None
    assert spent_ns() == before
