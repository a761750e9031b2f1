import pytest
import torch

from logitsieve.api.errors import InvalidRequest
from logitsieve.gpu.open import gpu_backend, gpu_device, gpu_memory, is_device


@pytest.mark.parametrize("name", ["cpu", "cuda", "cuda:0", "cuda:17"])
def test_names_of_devices(name: str) -> None:
    assert is_device(name)


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:x", "cuda:1234", "CUDA", ""])
def test_other_names_are_refused(name: str) -> None:
    assert not is_device(name)
    with pytest.raises(InvalidRequest, match=r"device: got .*, allowed: cpu, cuda, cuda:0"):
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
    with pytest.raises(
        InvalidRequest, match=f"device: got 'cuda', allowed: cpu .*{reason}"
    ) as caught:
        gpu_device("cuda")
    assert caught.value.field == "device"


def test_the_cpu_device_stands_for_a_gpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("on a GPU")
    assert gpu_memory("cuda") == ("cpu", None)
    assert gpu_backend("cuda").name == "PyTorch on the CPU"
