import pytest
import torch

from logitsieve.gpu.open import gpu_backend, gpu_device, gpu_memory, is_device
from tests.refusals import refused


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "cuda:1234", "CUDA", ""])
def test_names_of_devices_and_others(name: str) -> None:
    assert all(map(is_device, ("cpu", "cuda", "cuda:0", "cuda:17")))
    assert not is_device(name)
    with refused("device", "allowed: cpu, cuda, cuda:0"):
        gpu_device(name)


@pytest.mark.parametrize(
    ("cuda", "reason"), [(None, "is a build without CUDA"), ("12.8", "finds no NVIDIA driver")]
)
def test_cuda_without_a_gpu_says_why(
    cuda: str | None, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    with refused("device", f"got 'cuda', allowed: cpu .*{reason}"):
        gpu_device("cuda")


def test_the_cpu_device_stands_for_a_gpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("on a GPU")
    assert (gpu_memory("cuda"), gpu_backend("cuda").name) == (("cpu", None), "PyTorch on the CPU")
