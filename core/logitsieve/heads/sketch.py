"""The top k at the cost of a sketch: a bound for every row, few exact logits.

docs/sketch.md proves the bounds, and those that fail with a small chance. Rows with a bound below k
exact logits are dropped. Time O(D^2 + V F), the V F on bytes; memory F + T / 2 + 16 bytes a row.
"""

from copy import copy
from functools import cached_property
from math import inf, log
from typing import Self

import numpy as np

from logitsieve.api.keywords import BELOW_1, MAX_ERROR
from logitsieve.api.mask import count_bits
from logitsieve.api.requests import Sampling
from logitsieve.api.results import ArrayLike, Candidates, Float32, Float64, TopK
from logitsieve.heads._base.edits import Edits
from logitsieve.heads._base.head import FLOAT64, INT32, Knob, by_knob, ready_request, refuse_first
from logitsieve.heads._base.kernel_head import BestWithLogZ, Head, empty_best
from logitsieve.heads._base.spec import Arrays, PartSpec, TensorSpec
from logitsieve.heads.full import Drawn, FullHead
from logitsieve.kernels.simd.lanes import LANES
from logitsieve.kernels.simd.shorts import INFINITE, LAST, STEPS
from logitsieve.kernels.sketch.certified_topk import (
    certified_candidates,
    certified_topk,
    estimate_log_z,
    sketch_sums,
)
from logitsieve.kernels.sketch.levels import LEVEL_EXTRA, LEVELS, STEP, TAIL_QUANTUM
from logitsieve.kernels.sketch.sieve import FIRST_ROWS
from logitsieve.kernels.sketch.sketch import sketch_descriptor, widths_of
from logitsieve.kernels.topk.merge import FIELDS, merge_shares
from logitsieve.kernels.topk.queries import SUMS

GRADES = (0.0, MAX_ERROR, 1e-3)  # of `max_error`: those that a build measures
MAX_CODE_BYTES = 1024  # bytes of codes of a row, so that their products with a query fit 32 bits
MAX_TAIL = 16384  # coordinates, so that sums of products are whole numbers of float32
DENSE_ERROR = 1 / 8  # usual width of log Z from float32 logits
# log Z of e^{scale x} at a larger scale is estimated only beside so many exact logits.
MOST_SCALE, LEAST_BEST = 2.0, 16
OTHERS = 128  # rows that are computed for their noise alone, about
CLOSE = 1e-6  # of log of a share: above the rounding of weights


def _check_arrays(arrays: Arrays) -> None:
    size, fine = arrays["coarse"].shape[1], arrays["fine"].shape[1]
    coarse, tail, padded = widths_of(arrays)
    starts, step = arrays["starts"][:STEP].astype(np.int64), int(arrays["starts"][STEP])
    if step not in STEPS or (starts < 0).any() or (starts + (LAST << step) >= INFINITE).any():
        raise ValueError(f"starts has {[*starts.tolist(), step]}, no codes of finite numbers")
    if fine % LANES or not 0 <= padded <= MAX_TAIL or padded % TAIL_QUANTUM:
        allowed = f"16 ({LEVEL_EXTRA} + 0, 16, ... {LEVELS[-1].planes * MAX_TAIL // 8})"
        raise ValueError(f"fine has {fine} bytes a group, needed: {allowed}")
    if size % LANES or coarse % LANES or not 0 < coarse <= MAX_CODE_BYTES:
        allowed = f"16 ({LEVEL_EXTRA} + 16, 32, ... {MAX_CODE_BYTES})"
        raise ValueError(f"coarse has {size} bytes a group, needed: {allowed}")
    if not padded - TAIL_QUANTUM < tail <= padded:
        got = f"directions has {len(arrays['directions'])} rows"
        raise ValueError(f"{got}, not the {coarse} and {padded} of the codes")
    for level in LEVELS:
        needed = [len(arrays["coarse"]), level.group_bytes(padded)]
        if (shape := [*arrays[level.array].shape]) != needed:
            raise ValueError(f"{level.array} is {shape}, needed: {needed}")


SKETCH = PartSpec(
    "sketch",
    {
        "directions": TensorSpec("float16", ("D", "D")),
        "coarse": TensorSpec("uint8", (f"V/{LANES}", "S"), "codes"),
        "first": TensorSpec("uint8", (f"V/{LANES}", "M"), "codes"),
        "middle": TensorSpec("uint8", (f"V/{LANES}", "M"), "codes"),
        "fine": TensorSpec("uint8", (f"V/{LANES}", "T"), "codes"),
        "starts": TensorSpec("int32", (STEP + 1,), "codes"),
        "limits": TensorSpec("float64", (5,)),
    },
    structure=_check_arrays,
)


class SketchHead(Head):
    """Bounds every row of W, and computes the rows that may be among the best.

    A row's top k is wrong with a chance of at most `max_error`, over the random rotation of the
    index, for contexts that do not depend on it (docs/sketch.md). Bounds and log Z are proven.

    The arrays are trusted to be a sketch of this softmax: index/verify.py has compared them.
    """

    name = "sketch"
    part = SKETCH
    compiled = certified_topk
    knob_table = by_knob(
        max_error=Knob(
            help="largest chance that a row's top k is wrong, 0: a proof; time",
            default=MAX_ERROR,
            low=0,
            high=BELOW_1,
            whole=False,
            tried=GRADES,
        )
    )
    quick_best = True

    def _prepare(self) -> None:
        return

    def _apply_knobs(self) -> None:
        self.max_error = self.knobs["max_error"]
        self.estimates_log_z = not self.proves
        descriptor = sketch_descriptor(self._softmax.descriptor, self._arrays, self.max_error)
        # Level 0 of every row, and as much again as the first level where it rules few rows out.
        read = self._arrays["coarse"].nbytes + self._arrays["first"].nbytes
        self._describe(descriptor, read)

    def up_to(self, most_rows: int) -> Self:
        """Return the head that leaves calls of more rows to the product of `full`."""
        other = copy(self)
        other.most_rows = most_rows
        return other

    def _answer_checked(self, hidden_states: Float32, rows: int, k: int) -> TopK:
        if rows <= self.most_rows:
            return super()._answer_checked(hidden_states, rows, k)
        top = self._full.topk(hidden_states, k)
        top.proven.fill(self.proves)  # as in calls of fewer rows
        return top

    def estimates_at(self, scale: float, k: int) -> bool:
        few = 2 * FIRST_ROWS * k <= self._vocab_size
        return self.estimates_log_z and few and (scale <= MOST_SCALE or k >= LEAST_BEST)

    def selects(self, k: int, rows: int) -> bool:
        few = rows <= self.most_rows and 2 * FIRST_ROWS * k <= self._vocab_size
        return self.quick_best and few  # on a GPU it has no such way

    def best_with_log_z(self, hidden_states: Float32, k: int, scale: float = 1.0) -> BestWithLogZ:
        """Estimate log Z from the exact logits of the rows computed, and the codes of all others.

        With a `max_error` of 0, for a k of most of V, and cold with few rows, all logits prove it.
        """
        if not self.estimates_at(scale, k):
            return super().best_with_log_z(hidden_states, k, scale)
        noiseless = Sampling(0, np.zeros(len(hidden_states), np.uint64))
        return self.needed(hidden_states, k, noiseless, scale, summed=True)[0]

    def needed(
        self, hidden_states: Float32, k: int, how: Sampling, scale: float = 1.0, first_id: int = 0,
        *, summed: bool,
    ) -> tuple[BestWithLogZ, Float64]:  # fmt: skip
        """Return the k best rows as far as draws need them, and floors [B] of their logits.

        Rows below a floor may be missing: to win they need noise that about OTHERS rows have, or
        a filter removes them. With 0 samples noise sets no floor. log Z is estimated if `summed`.
        """
        best = empty_best(len(hidden_states), k)
        asked = (
            scale, summed, how.seeds, how.step, how.samples, first_id,
            log(self._vocab_size / OTHERS), how.least_log_share - CLOSE,
        )  # fmt: skip
        made = (INT32, k), (FLOAT64, k), (FLOAT64, SUMS), (INT32,), (FLOAT64,)
        refused, found = self._spread(sketch_sums.entry(), hidden_states, k, asked, *made)
        refuse_first(refused)
        ids, logits, sums, computed, floors = found
        merge_shares(ids, logits, best.ids, best.logits)
        if summed:
            estimate_log_z(sums, best.logits, scale, best.log_z, best.errors)
            if self._mask is not None:  # errors of fewer rows average out less
                best.errors[:] *= np.sqrt(self._vocab_size / np.maximum(count_bits(self._mask), 1))
        self._add_scanned(computed, best.scanned)
        best.proven.fill(self.proves)
        return best, np.maximum.reduce(floors)

    def candidates(self, hidden_states: ArrayLike, k: int) -> Candidates:
        """Return the rows that `topk` computes; `upper` bounds all others, +inf without proof."""
        hidden_states, _, k = ready_request(hidden_states, k, self._dim, self._vocab_size)
        bad, *candidates = certified_candidates(self._address, hidden_states, k)
        refuse_first([bad])
        if not self.proves:
            candidates[-1].fill(np.inf)
        return Candidates(*candidates)

    def log_z(
        self, hidden_states: Float32, scale: float, edits: Edits | None = None, width: float = inf
    ) -> Float64:
        """Return [B, 4] an estimate of log Z of all e^{scale x} and bounds, at most `width` apart.

        All logits are computed, in float32 if that suffices.
        """
        full, log_z = self._full, np.empty((len(hidden_states), FIELDS))
        plain = DENSE_ERROR * scale * full.quick_slack(hidden_states) <= width
        for rows, find in ((plain, full.quick_log_z), (~plain, full.log_z)):
            if rows.any():
                changed = edits and edits.rows(np.flatnonzero(rows))
                log_z[rows] = find(hidden_states[rows], scale, changed)
        return log_z

    def draw(
        self, hidden_states: Float32, how: Sampling, scale: float = 1.0,
        edits: Edits | None = None, first_id: int = 0,
    ) -> Drawn:  # fmt: skip
        """Return the draws of head `full` for each hidden state, and an interval of log Z."""
        return self._full.draw(hidden_states, how, scale, edits, first_id)

    @cached_property
    def _of_all(self) -> FullHead:
        return FullHead(self._softmax, threads=self._threads)

    @property
    def _full(self) -> FullHead:
        """The head of all logits, under the mask."""
        return self._of_all if self._mask is None else self._of_all.masked(self._mask)

    def warm(self) -> None:
        super().warm()
        zeros, seeds = np.zeros((1, self._dim), np.float32), np.zeros(1, np.uint64)
        self.draw(zeros, Sampling(1, seeds))
        self.log_z(zeros, 1.0)
