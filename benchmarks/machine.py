"""The machine under the numbers: its name, its caches, and how fast one core reads memory."""

import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from timeit import repeat
from typing import Any

import numpy as np

from logitsieve.index_builder.calibrate import machine
from logitsieve.kernels.compile import kernel
from logitsieve.kernels.simd.lanes import load, multiply_add, pair_sum, splat32, zeros32
from logitsieve.kernels.simd.pointers import pointer

SIZES = {"L1": 24 << 10, "L2": 512 << 10, "L3": 8 << 20, "DRAM": 512 << 20}
READ_BYTES = 1 << 30  # in each of the timed passes, however small the array


@kernel("(float32[::1], int64)")
def read_all(values: Any, passes: int) -> float:
    """Read an array (whole multiples of 64 values) `passes` times."""
    a, b, c, d = zeros32(), zeros32(), zeros32(), zeros32()
    start, one = pointer(values), splat32(np.float32(1))
    for _ in range(passes):
        for i in range(0, values.size, 64):
            a = multiply_add(load(start, i), one, a)
            b = multiply_add(load(start, i + 16), one, b)
            c = multiply_add(load(start, i + 32), one, c)
            d = multiply_add(load(start, i + 48), one, d)
    return pair_sum(a) + pair_sum(b) + pair_sum(c) + pair_sum(d)


def median_ns(run: Callable[[], object]) -> float:
    """Return the median time of seven runs, after one to warm up."""
    return 1e9 * statistics.median(repeat(run, repeat=8, number=1)[1:])


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy that begins at a multiple of 64 bytes, as the parts of an index do."""
    room = np.empty(array.nbytes + 64, np.uint8)
    start = -room.ctypes.data % 64
    copy: np.ndarray = room[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


def bandwidth() -> dict[str, float]:
    """GB/s that one core reads from each level, in long sequential passes."""
    rates = {}
    for level, size in SIZES.items():
        values = aligned(np.ones(size // 4, np.float32))
        passes = max(1, READ_BYTES // size // 8)
        rates[level] = passes * size / median_ns(partial(read_all, values, passes))
    return rates


def cache_sizes() -> dict[str, int]:
    """Bytes of the data caches that the first core sees; empty where the system does not tell."""
    sizes = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = (
            (index / fact).read_text(encoding="utf-8").strip() for fact in ("level", "type", "size")
        )
        if kind != "Instruction":
            sizes[f"L{level}"] = int(size.removesuffix("K")) << 10
    return sizes


def describe() -> dict[str, Any]:
    """Machine, cache sizes and read bandwidths, which every raw result carries."""
    return {**machine(), "caches": cache_sizes(), "read_GBps": bandwidth()}
