"""The top k from a sketch of W: a bound for every row, and few exact logits.

Rows with a bound below k exact logits are dropped; docs/sketch.md derives the bounds. Time
O(D^2 + V F), where V F counts bytes; memory F + T / 2 + 16 bytes a row.
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
from logitsieve.kernels.simd.lanes import AVX512, LANES
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

GRADES = (0.0, MAX_ERROR, 1e-3)  # the values of `max_error` that a build measures
MAX_CODE_BYTES = 1024  # coarse codes of a row: their product with a query fits 32 bits
MAX_TAIL = 16384  # coordinates: sums of products are exact in float32
DENSE_ERROR = 1 / 8  # usual width of log Z from float32 logits, as a share of `quick_slack`
# At a scale above MOST_SCALE log Z is estimated only with LEAST_BEST exact logits or more.
MOST_SCALE, LEAST_BEST = 2.0, 16
OTHERS = 128  # about as many rows are computed only because their noise is large
CLOSE = 1e-6  # lowers the log of min-p, by more than the rounding of weights


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
    index, for contexts that do not depend on it. The bounds of `log_z` are always proven.

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
    bytes_per_ns = Head.bytes_per_ns if AVX512 else 4  # AVX2 looks bits up more slowly

    def _prepare(self) -> None:
        return

    def _apply_knobs(self) -> None:
        self.max_error = self.knobs["max_error"]
        self.estimates_log_z = not self.proves
        descriptor = sketch_descriptor(self._softmax.descriptor, self._arrays, self.max_error)
        # If level 0 rules few rows out, the first level is read for most rows, too.
        read = self._arrays["coarse"].nbytes + self._arrays["first"].nbytes
        self._describe(descriptor, read)

    def up_to(self, most_rows: int) -> Self:
        """Return the head with `full` answering calls of more rows."""
        other = copy(self)
        other.most_rows = most_rows
        return other

    def _answer_checked(self, hidden_states: Float32, rows: int, k: int) -> TopK:
        if rows <= self.most_rows:
            return super()._answer_checked(hidden_states, rows, k)
        top = self._full.topk(hidden_states, k)
        top.proven.fill(self.proves)  # as for fewer rows
        return top

    def estimates_at(self, scale: float, k: int) -> bool:
        few = 2 * FIRST_ROWS * k <= self._vocab_size
        return self.estimates_log_z and few and (scale <= MOST_SCALE or k >= LEAST_BEST)

    def selects(self, k: int, rows: int) -> bool:
        few = rows <= self.most_rows and 2 * FIRST_ROWS * k <= self._vocab_size
        return self.quick_best and few  # a head on a GPU has no `needed`

    def best_with_log_z(self, hidden_states: Float32, k: int, scale: float = 1.0) -> BestWithLogZ:
        """Estimate log Z from the exact logits of the rows computed, and the codes of all others.

        Unless the head `estimates_at` this scale and k, log Z is proven from all logits.
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

        Rows below a floor may be missing: a filter removes them, or they win only by noise that
        about OTHERS rows have. `how` may have 0 samples. `summed` estimates log Z.
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
        """Return the rows that `topk` computes; `upper` bounds the others, +inf if unproven."""
        hidden_states, _, k = ready_request(hidden_states, k, self._dim, self._vocab_size)
        bad, *candidates = certified_candidates(self._address, hidden_states, k)
        refuse_first([bad])
        if not self.proves:
            candidates[-1].fill(np.inf)
        return Candidates(*candidates)

    def log_z(
        self, hidden_states: Float32, scale: float, edits: Edits | None = None, width: float = inf
    ) -> Float64:
        """Return [B, 4] log Z of all e^{scale x} from all logits, in float32 if `width` allows.

        `width` is the largest distance of the bounds that the caller accepts.
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
        return self._full.draw(hidden_states, how, scale, edits, first_id)

    @cached_property
    def _of_all(self) -> FullHead:
        return FullHead(self._softmax, threads=self._threads)

    @property
    def _full(self) -> FullHead:
        """The head `full` under the same mask."""
        return self._of_all if self._mask is None else self._of_all.masked(self._mask)

    def warm(self) -> None:
        super().warm()
        zeros, seeds = np.zeros((1, self._dim), np.float32), np.zeros(1, np.uint64)
        self.draw(zeros, Sampling(1, seeds))
        self.log_z(zeros, 1.0)
