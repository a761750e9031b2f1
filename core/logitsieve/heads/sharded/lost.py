"""A shard that does not answer, and what is known of its rows without it.

Shape letters: B batch rows, D hidden size, V vocabulary, P coordinates, G groups of 16 rows.
"""

from __future__ import annotations

import numpy as np

from logitsieve.api.errors import ShardUnavailable
from logitsieve.api.results import Float32, Float64
from logitsieve.heads._base.head import refuse_first
from logitsieve.heads._base.spec import Arrays, PartSpec, TensorSpec
from logitsieve.kernels.intervals.largest import largest_bounds
from logitsieve.kernels.simd.lanes import LANES
from logitsieve.kernels.sketch.sketch import COARSE_EXTRA, EXTRA, sketch_descriptor
from logitsieve.kernels.topk.descriptor import norms_descriptor

WIDTH = 64  # bytes of a row in `fine` are a multiple of it


def _check_arrays(arrays: Arrays) -> None:
    count, dim = arrays["directions"].shape
    if count > dim:
        raise ValueError(f"directions has {count} rows, allowed: 1 .. {dim}")
    size = arrays["coarse"].shape[1]
    if size % (LANES * LANES) != LANES * COARSE_EXTRA or size == LANES * COARSE_EXTRA:
        raise ValueError(f"coarse has {size} bytes a group, needed: 16 (12 + 16, 32, ...)")
    if not (np.isfinite(arrays["norms"]) & (arrays["norms"] >= 0)).all():
        raise ValueError("norms are not all finite and 0 or more")


# What every shard's sketch has in common, and `coarse` of all of them, one after the other.
BOUNDS = PartSpec(
    "bounds",
    {
        "directions": TensorSpec("float32", ("P", "D")),
        "stretch": TensorSpec("float32", ("D",), "factors"),
        "triangle": TensorSpec("float32", ("P", "P")),
        "coarse": TensorSpec("uint8", ("V/16", "S"), "codes"),
        "limits": TensorSpec("float64", (5,)),
        "norms": TensorSpec("float64", (6,)),
    },
    structure=_check_arrays,
)


class LostShard:
    """Rows `first` .. `first` + `rows` - 1 of W, which cannot be asked.

    `bounds` are those of the whole index, if it has them, `norms` the whole's `Softmax.norms`.
    """

    def __init__(
        self, first: int, rows: int, dim: int, norms: tuple[float, float], bounds: Arrays | None
    ) -> None:
        self.first, self.rows = first, rows
        self._sketch = None
        if bounds is not None:
            groups = slice(first // LANES, -(-(first + rows) // LANES))
            self._arrays = _sketch_of(bounds, groups)
            self._sketch = sketch_descriptor(norms_descriptor(rows, dim, *norms), self._arrays)

    def most(self, hidden: Float32) -> Float64:
        """[B] what no logit of its rows exceeds, infinite without bounds."""
        most = np.full(len(hidden), np.inf)
        if self._sketch is not None:
            refuse_first([largest_bounds(self._sketch.ctypes.data, hidden, most)])
        return most

    def error(self) -> ShardUnavailable:
        return ShardUnavailable(self.first, self.rows)


def _sketch_of(bounds: Arrays, groups: slice) -> dict[str, np.ndarray]:
    """The arrays of a sketch of these groups, with a `fine` and an `order` that are not read."""
    coarse = np.ascontiguousarray(bounds["coarse"][groups])
    coded = coarse.shape[1] // LANES - COARSE_EXTRA
    fine = np.zeros((1, -(-(coded + EXTRA) // WIDTH) * WIDTH), np.uint8)
    return {**bounds, "coarse": coarse, "fine": fine, "order": np.zeros(1, np.int32)}
