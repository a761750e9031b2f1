"""A shard that does not answer, and what is known of its rows without it.

Shape letters: B batch rows, D hidden size, V vocabulary, P coordinates, R replicated rows,
N = V - R others, G groups of 16 of these.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from logitsieve.api.errors import ShardUnavailable
from logitsieve.api.results import Bool, Float32, Float64, Int32
from logitsieve.heads._base.head import refuse_first
from logitsieve.heads._base.spec import Arrays, PartSpec, TensorSpec
from logitsieve.kernels.simd.lanes import LANES
from logitsieve.kernels.sketch.reach import rows_reach
from logitsieve.kernels.sketch.sketch import COARSE_EXTRA, EXTRA, sketch_descriptor
from logitsieve.kernels.topk.descriptor import BIAS, fill_fields, norms_descriptor

COMMON = ("directions", "stretch", "triangle", "limits", "norms")  # to all rows of a sketch
NO_IDS = np.empty(0, np.int32)
WIDTH = 64  # bytes of a row in `fine` are a multiple of it


def _check_arrays(arrays: Arrays) -> None:
    count, dim = arrays["directions"].shape
    if count > dim:
        raise ValueError(f"directions has {count} rows, allowed: 1 .. {dim}")
    size, width = arrays["coarse"].shape[1], arrays["fine"].shape[1]
    if size % (LANES * LANES) != LANES * COARSE_EXTRA or size == LANES * COARSE_EXTRA:
        raise ValueError(f"coarse has {size} bytes a group, needed: 16 (12 + 16, 32, ...)")
    if width % WIDTH or width - EXTRA < size // LANES - COARSE_EXTRA:
        raise ValueError(
            f"fine has {width} bytes a row, needed: 64, 128, ..., no fewer than coarse"
        )
    if not (np.isfinite(arrays["norms"]) & (arrays["norms"] >= 0)).all():
        raise ValueError("norms are not all finite and 0 or more")


# What every shard's sketch has in common; and of the rows that are not replicated, those of one
# shard after the other, `coarse`, and `fine` and biases in its order.
BOUNDS = PartSpec(
    "bounds",
    {
        "directions": TensorSpec("float32", ("P", "D")),
        "stretch": TensorSpec("float32", ("D",), "factors"),
        "triangle": TensorSpec("float32", ("P", "P")),
        "coarse": TensorSpec("uint8", ("G", "S"), "codes"),
        "fine": TensorSpec("uint8", ("N", "T"), "codes"),
        "bias": TensorSpec("float32", ("N",)),
        "limits": TensorSpec("float64", (5,)),
        "norms": TensorSpec("float64", (6,)),
    },
    structure=_check_arrays,
)


class Bounds:
    """The part `bounds` of an index in shards that begin at `borders`, whose last is V.

    `norms` are the whole's `Softmax.norms`, `replicated` ids that it has not, rising. ValueError
    for arrays of another number of rows.
    """

    def __init__(
        self,
        arrays: Arrays,
        borders: Sequence[int],
        norms: tuple[float, float],
        replicated: Int32 = NO_IDS,
    ) -> None:
        self._arrays, self._norms, self._borders = arrays, norms, list(borders)
        rows = np.diff(self._borders) - np.diff(np.searchsorted(replicated, self._borders))
        ends = np.cumsum([rows, -(-rows // LANES)], axis=1)
        got, needed = [len(arrays[name]) for name in ("fine", "coarse")], ends[:, -1].tolist()
        if got != needed or len(arrays["bias"]) != got[0]:
            raise ValueError(f"fine and coarse have {got} rows and groups, needed: {needed}")
        self._ends = [np.concatenate([[0], each]) for each in ends]
        self._bounded: dict[int, BoundedRows] = {}

    def of(self, first: int) -> BoundedRows:
        """Bounds of the rows of the shard that begins there."""
        if first not in self._bounded:
            place = self._borders.index(first)
            rows, groups = (slice(int(ends[place]), int(ends[place + 1])) for ends in self._ends)
            self._bounded[first] = BoundedRows(self._arrays, rows, groups, self._norms)
        return self._bounded[first]

    def warm(self) -> None:
        """Compile the kernel that a lost shard needs."""
        zeros = np.zeros((1, self._arrays["directions"].shape[1]), np.float32)
        for first in self._borders[:-1]:
            self.of(first).reach(zeros, np.zeros(1))


class BoundedRows:
    """The rows of one shard as `bounds` has them."""

    def __init__(
        self, arrays: Arrays, rows: slice, groups: slice, norms: tuple[float, float]
    ) -> None:
        self._sketch = None
        if rows.start < rows.stop:
            coarse, fine, bias = arrays["coarse"][groups], arrays["fine"][rows], arrays["bias"]
            # Kept, as the descriptor has their addresses; `order` is not read.
            self._arrays = {**arrays, "coarse": coarse, "fine": fine, "order": NO_IDS}
            matrix = norms_descriptor(len(fine), arrays["directions"].shape[1], *norms)
            matrix = fill_fields(matrix, {BIAS: bias[rows]})
            self._sketch = sketch_descriptor(matrix, self._arrays)

    def reach(self, hidden: Float32, floors: Float64) -> Bool:
        """[B] whether one of them may have a logit of at least floors [B]."""
        reached = np.zeros(len(hidden), np.bool_)
        if self._sketch is not None:
            floors = np.ascontiguousarray(floors)
            refuse_first([rows_reach(self._sketch.ctypes.data, hidden, floors, reached)])
        return reached


class LostShard:
    """Rows `first` .. `first` + `rows` - 1 of W, which cannot be asked.

    Without `bounds` nothing is known of them.
    """

    def __init__(self, first: int, rows: int, bounds: Bounds | None) -> None:
        self.first, self.rows = first, rows
        self._bounded = None if bounds is None else bounds.of(first)

    def reach(self, hidden: Float32, floors: Float64) -> Bool:
        """[B] whether a row that is not replicated may have a logit of at least floors [B]."""
        if self._bounded is None:
            return np.ones(len(hidden), np.bool_)
        return self._bounded.reach(hidden, floors)

    def error(self) -> ShardUnavailable:
        return ShardUnavailable(self.first, self.rows)
