"""Stored matrices: floats, or ggml's blocks of codes with shared scales.

docs/index-format.md describes the layouts. The float32 arithmetic of kernels/rows defines the
numbers that blocks stand for.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Int64
from logitsieve.utils.floats import CODES, STORED

CHECKED_BLOCKS = 1 << 20  # blocks checked together


class Kind(NamedTuple):
    """A row format: blocks of `values` numbers in `bytes` bytes; a float is a block of one."""

    code: str  # name in manifests and GGUF files
    dtype: np.dtype[Any]  # the float, or bytes
    values: int
    bytes: int
    scales: tuple[int, ...] = ()  # byte offsets of a block's float16 scales

    @property
    def blocks(self) -> bool:
        return bool(self.scales)


_BYTES = np.dtype(np.uint8)
KINDS: dict[str, Kind] = {
    kind.code: kind
    for kind in (
        *(Kind(code, STORED[name], 1, STORED[name].itemsize) for name, code in CODES.items()),
        Kind("Q8_0", _BYTES, 32, 34, scales=(0,)),
        Kind("Q4_0", _BYTES, 32, 18, scales=(0,)),
        Kind("Q4_1", _BYTES, 32, 20, scales=(0, 2)),
        Kind("Q5_0", _BYTES, 32, 22, scales=(0,)),
        Kind("Q5_1", _BYTES, 32, 24, scales=(0, 2)),
        Kind("IQ4_NL", _BYTES, 32, 18, scales=(0,)),
        Kind("Q6_K", _BYTES, 256, 210, scales=(208,)),
        Kind("Q4_K", _BYTES, 256, 144, scales=(0, 2)),
        Kind("Q5_K", _BYTES, 256, 176, scales=(0, 2)),
    )
}


@dataclass(frozen=True, eq=False)
class StoredMatrix:
    """A C-contiguous matrix of one of KINDS: `data` is [V, D] floats, or the bytes of V rows.

    `data` is not copied, and may be mapped and read-only. InvalidRequest for an unknown kind or
    incomplete blocks.
    """

    kind: str
    data: np.ndarray

    def __post_init__(self) -> None:
        # Kernels read the array by its address, and check nothing.
        if self.kind not in KINDS:
            raise InvalidRequest("weight", f"the type {self.kind!r:.40}", ", ".join(KINDS))
        data, kind = self.data, KINDS[self.kind]
        width = kind.bytes if kind.blocks else 1
        fits = data.ndim == 2 and data.size > 0 and data.shape[1] % width == 0
        if data.dtype != kind.dtype or not fits or not data.flags.c_contiguous:
            rows = f"whole blocks of {width} bytes, {self.kind}" if kind.blocks else "any"
            allowed = f"{kind.dtype} [any, {rows}], C-contiguous"
            raise InvalidRequest("weight", f"{data.dtype} {list(data.shape)}", allowed)

    @classmethod
    def of(cls, array: np.ndarray | StoredMatrix) -> StoredMatrix:
        if isinstance(array, StoredMatrix):
            return array
        for code, kind in KINDS.items():
            if kind.dtype == array.dtype and not kind.blocks:
                return cls(code, array)
        allowed = "float32, float16 or bfloat16 (as its uint16 view)"
        raise InvalidRequest("weight", array.dtype, allowed)

    @property
    def vocab_size(self) -> int:
        return int(self.data.shape[0])

    @property
    def dim(self) -> int:
        kind = KINDS[self.kind]
        return self.row_bytes // kind.bytes * kind.values

    @property
    def shape(self) -> tuple[int, int]:
        return self.vocab_size, self.dim

    @property
    def row_bytes(self) -> int:
        return int(self.data.shape[1]) * self.data.itemsize

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

    def __len__(self) -> int:
        return self.vocab_size

    def __getitem__(self, rows: slice | Int64) -> StoredMatrix:
        return StoredMatrix(self.kind, self.data[rows])

    def copy(self) -> StoredMatrix:
        return StoredMatrix(self.kind, self.data.copy())

    def row_without_scale(self) -> int | None:
        """Return the first row with a scale that is not finite, or None."""
        kind = KINDS[self.kind]
        blocks = self.data.reshape(-1, kind.bytes) if kind.blocks else self.data
        for start in range(0, len(blocks), CHECKED_BLOCKS):
            piece = blocks[start : start + CHECKED_BLOCKS]
            for place in kind.scales:
                scales = piece[:, place : place + 2].copy().view(np.float16)
                good = np.isfinite(scales[:, 0])
                if not good.all():
                    block = start + int(good.argmin())
                    return block // (self.row_bytes // kind.bytes)
        return None
