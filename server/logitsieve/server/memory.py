"""Memory that the C library gives back after large requests."""

from __future__ import annotations

import ctypes

# Of glibc's malloc.h. Once set, the thresholds do not grow with freed blocks.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
LARGE = 1 << 20  # bytes
ARENAS = 2


def return_memory() -> None:
    """Return large blocks when they are freed, and keep few arenas; only with glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for name, value in ((M_MMAP_THRESHOLD, LARGE), (M_TRIM_THRESHOLD, LARGE)):
            mallopt(name, value)
        mallopt(M_ARENA_MAX, ARENAS)
