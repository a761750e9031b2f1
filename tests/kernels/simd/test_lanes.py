import numpy as np
import pytest
from numba.core import config

from logitsieve.kernels.compile import kernel
from logitsieve.kernels.simd.lanes import cpu_has, prefetch
from logitsieve.kernels.simd.pointers import pointer


@kernel("(float32[::1], int64)")
def fetched(values, offset):
    prefetch(pointer(values), offset)
    return values[0]


@pytest.mark.parametrize("offset", [0, -(1 << 20), 1 << 44, 1 << 60])
def test_any_address_may_be_prefetched(offset: int) -> None:
    assert fetched(np.full(1, 7, np.float32), offset) == 7


@pytest.mark.parametrize(("features", "wanted"), [("+avx2,+fma", True), ("+avx,-avx2", False)])
def test_features_are_those_that_numba_is_set_to(
    features: str, wanted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "CPU_FEATURES", features)
    assert cpu_has("avx2") is wanted
    assert not cpu_has("av")  # the beginning of a name
