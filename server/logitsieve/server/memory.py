"""Memory that the C library gives back, instead of keeping what requests once took."""

from __future__ import annotations

import ctypes

# glibc's mallopt: numbers of malloc.h. Set, they do not grow with the blocks that were freed.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
LARGE = 1 << 20  # bytes of a block that goes back as soon as it is freed
ARENAS = 2


def return_memory() -> None:
    """Return large blocks when they are freed, and keep few arenas; with glibc alone."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for name, value in ((M_MMAP_THRESHOLD, LARGE), (M_TRIM_THRESHOLD, LARGE)):
            mallopt(name, value)
        mallopt(M_ARENA_MAX, ARENAS)
