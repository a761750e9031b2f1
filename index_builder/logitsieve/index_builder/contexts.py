from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Self, TypeAlias

import numpy as np

from logitsieve.api.errors import InvalidRequest, naming
from logitsieve.api.results import ArrayLike, Float32, Int64
from logitsieve.index_builder.arrays import FORMS, if_turned, map_arrays
from logitsieve.utils.hidden import MASKED, as_hidden

BLOCK_ROWS = 8192
HELD_OUT = 10  # one context in HELD_OUT

Source: TypeAlias = "Contexts | ArrayLike | Path | str"


class Contexts:
    """N rows of size D in shards, which may be mapped. InvalidRequest if they are not finite."""

    def __init__(
        self,
        shards: Sequence[np.ndarray],
        field: str = "contexts",
        firsts: Sequence[int] | None = None,
    ) -> None:
        if firsts is None:
            firsts = list(accumulate((len(shard) for shard in shards), initial=0))[:-1]
        self.field = field
        self._firsts = [first for shard, first in zip(shards, firsts, strict=True) if len(shard)]
        self._shards = [shard for shard in shards if len(shard)]
        self._ends = np.cumsum([len(shard) for shard in self._shards], dtype=np.int64)
        self.rows = int(self._ends[-1]) if self._shards else 0
        self.dim = int(self._shards[0].shape[1]) if self._shards else 0

    def blocks(self, size: int = BLOCK_ROWS) -> Iterator[Float32]:
        """Yield float32 [n, D] in order, n <= size. A block is part of one shard."""
        for shard, first in zip(self._shards, self._firsts, strict=True):
            for start in range(0, len(shard), size):
                yield self._read(shard[start : start + size], first + start)

    def parts(self, size: int = BLOCK_ROWS) -> Iterator[tuple[slice, Float32]]:
        yield from zip(self.spans(size), self.blocks(size), strict=True)

    def spans(self, size: int = BLOCK_ROWS) -> Iterator[slice]:
        done = 0
        for shard in self._shards:
            for start in range(0, len(shard), size):
                stop = min(start + size, len(shard))
                yield slice(done + start, done + stop)
            done += len(shard)

    def take(self, rows_S: Int64) -> Float32:
        taken = np.empty((len(rows_S), self.dim), np.float32)
        shard_of_S = np.searchsorted(self._ends, rows_S, side="right")
        for number in np.unique(shard_of_S):
            places = np.flatnonzero(shard_of_S == number)
            shard = self._shards[number]
            local = rows_S[places] - (self._ends[number] - len(shard))
            for start in range(0, len(places), BLOCK_ROWS):
                part = slice(start, start + BLOCK_ROWS)
                taken[places[part]] = self._read(
                    shard[local[part]], self.number(int(rows_S[places[part]][0]))
                )
        return taken

    def sample(self, rows: int) -> Float32:
        count = min(rows, self.rows)
        return self.take(np.arange(count) * self.rows // count)

    def between(self, start: int, stop: int) -> Self:
        shards, firsts = [], []
        for shard, end, number in zip(self._shards, self._ends, self._firsts, strict=True):
            first = int(end) - len(shard)
            shards.append(shard[max(0, start - first) : max(0, stop - first)])
            firsts.append(number + max(0, start - first))
        return type(self)(shards, self.field, firsts)

    def number(self, row: int) -> int:
        shard = int(np.searchsorted(self._ends, row, side="right"))
        return self._firsts[shard] + row - (int(self._ends[shard]) - len(self._shards[shard]))

    @classmethod
    def joined(cls, parts: Sequence[Contexts]) -> Self:
        shards = [shard for part in parts for shard in part._shards]
        firsts = [first for part in parts for first in part._firsts]
        return cls(shards, parts[0].field, firsts)

    def spread(self, rows: int, blocks: int) -> Self:
        size = rows // blocks
        if self.rows <= rows or size == 0:
            return self.between(0, rows)
        starts = [self.rows * number // blocks for number in range(blocks)]
        return self.joined([self.between(start, start + size) for start in starts])

    def split(self) -> tuple[Self, Self]:
        """Return (to fit on, held out). A random part would resemble its neighbours."""
        if self.rows < 2:
            raise InvalidRequest(self.field, f"{self.rows} rows", "2 rows or more, or `heldout`")
        border = self.rows - max(1, self.rows // HELD_OUT)
        return self.between(0, border), self.between(border, self.rows)

    def _read(self, rows: np.ndarray, first: int) -> Float32:
        block = as_hidden(rows, self.dim)
        finite = np.isfinite(block).all(axis=1)
        if not finite.all():
            bad = first + int(np.argmin(finite))
            raise InvalidRequest(self.field, f"NaN or infinity near row {bad}", "finite values")
        return block


def open_contexts(
    source: Source, dim: int, field: str = "contexts", vocab_size: int = 0
) -> Contexts:
    """Open contexts of size `dim` from an array or files (arrays.py). InvalidRequest names `field`.

    A size of `vocab_size` suggests a transposed weight.
    """
    if isinstance(source, Contexts):
        shards = source._shards
    elif isinstance(source, (str, Path)):
        shards = map_arrays(source, field)
    elif isinstance(source, np.ndarray):
        shards = [source]
    else:
        with naming(field):
            shards = [as_hidden(source)]
    for shard in shards:
        if np.ma.is_masked(shard):
            raise InvalidRequest(field, MASKED, FORMS)
        floats = (
            shard.dtype.kind == "f" or shard.dtype == np.uint16 or shard.dtype.name == "bfloat16"
        )
        if not floats or shard.dtype.itemsize > 8:
            raise InvalidRequest(field, f"dtype {shard.dtype}", FORMS)
        if shard.ndim != 2:
            raise InvalidRequest(field, f"shape {list(shard.shape)}", "[N, D]")
        if shard.shape[1] != dim:
            allowed = f"D = {dim}, the weight's{if_turned(shard.shape[1], vocab_size)}"
            raise InvalidRequest(field, f"D = {shard.shape[1]}", allowed)
    contexts = Contexts(shards, field)
    if not contexts.rows:
        raise InvalidRequest(field, "no rows", "at least one context")
    return contexts
