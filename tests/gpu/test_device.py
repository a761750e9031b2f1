import pytest
import torch

from logitsieve.api.errors import DeviceExhausted, DeviceLost, InvalidRequest
from logitsieve.gpu.device import (
    computing,
    memory_of,
    require_true_float32,
    spent_ns,
    timed,
    translated,
)
from tests.gpu.opened import DEVICE, make_gpu_head
from tests.synthetic import make_hidden, make_softmax


@pytest.mark.parametrize(
    ("error", "ours"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"), DeviceExhausted),
        (torch.AcceleratorError("CUDA error: out of memory", 2), DeviceExhausted),
        (RuntimeError("Triton Error [CUDA]: out of memory"), DeviceExhausted),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), DeviceLost),
    ],
)
def test_errors_of_the_driver(error: RuntimeError, ours: type[Exception]) -> None:
    with pytest.raises(ours), computing(DEVICE):
        raise error


def test_other_errors_stay_what_they_are() -> None:
    assert translated(ValueError("anything"), "cuda:0") is None
    with pytest.raises(RuntimeError, match="anything"), computing(DEVICE):
        raise RuntimeError("anything")


def test_memory_and_time_are_told_of_a_gpu_alone() -> None:
    before, memory = spent_ns(), memory_of(DEVICE)
    with timed(DEVICE):
        torch.ones(8, device=DEVICE).sum()
    if DEVICE.type == "cuda":
        assert memory is not None
        assert 0 < memory.used <= memory.total
        assert spent_ns() > before
    else:
        assert (memory, spent_ns()) == (None, before)


@pytest.fixture
def rounded_products() -> object:
    """PyTorch may use TF32 on a GPU, and bfloat16 on a CPU."""
    torch.set_float32_matmul_precision("medium")
    yield
    torch.set_float32_matmul_precision("highest")


def test_products_of_rounded_operands_are_refused(rounded_products: object) -> None:
    head = make_gpu_head("full", make_softmax())
    with pytest.raises(InvalidRequest, match=r"fp32_precision: got '(tf32|bf16)', allowed: 'ieee'"):
        head.topk(make_hidden(2), 1)


def test_autocast_rounds_nothing_and_true_float32_is_the_default() -> None:
    head, hidden_states = make_gpu_head("full", make_softmax()), torch.from_numpy(make_hidden(3))
    expected = head.topk(hidden_states.to(DEVICE), 5)
    with torch.autocast(DEVICE.type, torch.bfloat16):
        top = head.topk(hidden_states.to(DEVICE).requires_grad_(), 5)
    for mine, theirs in zip(top, expected, strict=True):
        assert torch.equal(torch.as_tensor(mine), torch.as_tensor(theirs))
    require_true_float32(DEVICE)
