"""A shard that does not answer, and what is known of its rows without it.

Shape letters: B batch rows, D hidden size, V vocabulary, K answers, P coordinates, R replicated
rows, N = V - R others, G groups of 16 of these.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from logitsieve.api.errors import ShardUnavailable
from logitsieve.api.results import Bool, Float32, Float64
from logitsieve.heads._base.head import Softmax, refuse_first
from logitsieve.heads._base.spec import Arrays, PartSpec, TensorSpec
from logitsieve.heads.exact import ExactHead
from logitsieve.heads.sharded.shard import Best, Shard
from logitsieve.kernels.simd.lanes import LANES
from logitsieve.kernels.sketch.reach import rows_reach
from logitsieve.kernels.sketch.sketch import COARSE_EXTRA, EXTRA, sketch_descriptor
from logitsieve.kernels.topk.descriptor import BIAS, fill_fields, norms_descriptor

COMMON = ("directions", "stretch", "triangle", "limits", "norms")  # to all rows of a sketch
REPLICATED = ("replicated", "replicated_weight", "replicated_bias")
NO_ORDER = np.zeros(1, np.int32)
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
    if len({name in arrays for name in REPLICATED}) > 1:
        raise ValueError(f"holds some of {', '.join(REPLICATED)}, needed: all or none")
    if "replicated" in arrays and (np.diff(arrays["replicated"]) <= 0).any():
        raise ValueError("replicated does not rise")


# What every shard's sketch has in common; of the rows that are not replicated, those of one shard
# after the other, `coarse`, and `fine` and biases in its order; and the replicated rows of W.
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
        "replicated": TensorSpec("int32", ("R",), "ids", "V", optional=True),
        "replicated_weight": TensorSpec("float32", ("R", "D"), optional=True),
        "replicated_bias": TensorSpec("float32", ("R",), optional=True),
    },
    structure=_check_arrays,
)


class Bounds:
    """The part `bounds` of an index in shards that begin at `borders`, whose last is V.

    `norms` are the whole's `Softmax.norms`. ValueError for arrays of another number of rows.
    """

    def __init__(self, arrays: Arrays, borders: Sequence[int], norms: tuple[float, float]) -> None:
        self._arrays, self._norms, self._borders = arrays, norms, list(borders)
        ids = arrays.get("replicated", np.empty(0, np.int32))
        replicated = np.searchsorted(ids, self._borders)  # in front of each border
        rows = np.diff(self._borders) - np.diff(replicated)
        ends = np.cumsum([rows, -(-rows // LANES)], axis=1)
        got, needed = [len(arrays[name]) for name in ("fine", "coarse")], ends[:, -1].tolist()
        if got != needed or len(arrays["bias"]) != got[0]:
            raise ValueError(f"fine and coarse have {got} rows and groups, needed: {needed}")
        self._ends = [replicated, *(np.concatenate([[0], each]) for each in ends)]
        self._known: dict[int, KnownRows] = {}

    def of(self, first: int) -> KnownRows:
        """What is known of the rows of the shard that begins there."""
        if first not in self._known:
            place = self._borders.index(first)
            replicated, others, groups = (
                slice(int(ends[place]), int(ends[place + 1])) for ends in self._ends
            )
            self._known[first] = KnownRows(self._arrays, replicated, others, groups, self._norms)
        return self._known[first]

    def warm(self) -> None:
        """Compile the kernels that a lost shard needs."""
        zeros = np.zeros((1, self._arrays["directions"].shape[1]), np.float32)
        for first in self._borders[:-1]:
            self.of(first).best(zeros, 1)
            self.of(first).reach(zeros, np.zeros(1))


class KnownRows:
    """The rows of one shard as `bounds` has them: some are replicated, the others are bounded."""

    def __init__(
        self,
        arrays: Arrays,
        replicated: slice,
        others: slice,
        groups: slice,
        norms: tuple[float, float],
    ) -> None:
        self._replicas, self._sketch = None, None
        if replicated.start < replicated.stop:
            self._ids, weight, bias = (arrays[name][replicated] for name in REPLICATED)
            softmax = Softmax(weight, bias, norms)
            exact = ExactHead.from_arrays(softmax, {}, fallback=None, threads=1, knobs={})
            self._replicas = Shard(0, softmax, {"exact": exact})
        if others.start < others.stop:
            coarse, fine, bias = arrays["coarse"][groups], arrays["fine"][others], arrays["bias"]
            # Kept, as the descriptor has their addresses; `order` is not read.
            self._arrays = {**arrays, "coarse": coarse, "fine": fine, "order": NO_ORDER}
            matrix = norms_descriptor(len(fine), arrays["directions"].shape[1], *norms)
            matrix = fill_fields(matrix, {BIAS: bias[others]})
            self._sketch = sketch_descriptor(matrix, self._arrays)

    def best(self, hidden: Float32, k: int) -> Best | None:
        """The k best replicated rows, or all if they are fewer; None where there are none."""
        if self._replicas is None:
            return None
        best = self._replicas.best("exact", hidden, k)
        return best._replace(ids=self._ids[best.ids])

    def reach(self, hidden: Float32, floors: Float64) -> Bool:
        """[B] whether a row that is not replicated may have a logit of at least floors [B]."""
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
        self._known = None if bounds is None else bounds.of(first)

    def best(self, hidden: Float32, k: int) -> Best | None:
        """The k best of its replicated rows, or all if they are fewer; None without any."""
        return None if self._known is None else self._known.best(hidden, k)

    def reach(self, hidden: Float32, floors: Float64) -> Bool:
        """[B] whether another of its rows may have a logit of at least floors [B]."""
        if self._known is None:
            return np.ones(len(hidden), np.bool_)
        return self._known.reach(hidden, floors)

    def error(self) -> ShardUnavailable:
        return ShardUnavailable(self.first, self.rows)
