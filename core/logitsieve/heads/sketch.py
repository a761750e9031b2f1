"""The top k at the cost of a sketch: a bound for every row, few exact logits.

docs/certified.md proves the bound, from int8 codes of some coordinates; docs/levels.md has tighter
ones, which fail with a small chance. Rows with a bound below k exact logits are dropped. Time
O(P D + V F), the V F on bytes; memory F + T + 16 bytes a row.
"""

from functools import cached_property, partial
from math import inf

import numpy as np

from logitsieve.api.keywords import BELOW_1, MAX_ERROR
from logitsieve.api.results import (
    ArrayLike,
    Bool,
    Bounds,
    Candidates,
    Float32,
    Float64,
    Int32,
    TopK,
)
from logitsieve.heads._base.head import (
    Edits,
    Knob,
    by_knob,
    edits_of_rows,
    no_edits,
    ready_hidden,
    ready_request,
    refuse_first,
)
from logitsieve.heads._base.kernel_head import ANY_ROWS, BestWithLogZ, Head, empty_best
from logitsieve.heads._base.spec import Arrays, PartSpec, TensorSpec, all_different
from logitsieve.heads.exact import Drawn, DrawOptions, ExactHead
from logitsieve.kernels.intervals.draws import interval_sample
from logitsieve.kernels.pool import run_slices
from logitsieve.kernels.sampling.log_z import csr_log_z
from logitsieve.kernels.simd.lanes import LANES
from logitsieve.kernels.simd.shorts import INFINITE, LAST, STEPS
from logitsieve.kernels.sketch.certified_topk import (
    certified_bounds,
    certified_candidates,
    certified_topk,
    sketch_log_z,
)
from logitsieve.kernels.sketch.levels import LEVEL_EXTRA, STEP, TAIL_QUANTUM
from logitsieve.kernels.sketch.sieve import FIRST_ROWS
from logitsieve.kernels.sketch.sketch import COARSE_EXTRA, sketch_descriptor, widths_of
from logitsieve.kernels.topk.merge import FIELDS, HIGH, LOW, TOP

GRADES = (0.0, MAX_ERROR, 1e-3)  # of `max_error`: those that a build measures
WIDEST_LOG_Z = 1e6  # nats, larger than any interval: stop after the fine codes
MAX_CODE_BYTES = 1024  # bytes of codes of a row, so that their products with a query fit 32 bits
MAX_TAIL = 16384  # coordinates, so that sums of products are whole numbers of float32
# Products of W and a row of hidden in the time of a draw by bounds, W in L3; half from DRAM.
PRODUCTS_A_DRAW = 1 << 16
# Rows of a call beyond which their shared product with W takes less time than proofs by levels.
MAX_LEVEL_ROWS = 3
DENSE_ERROR = 1 / 8  # usual width of log Z from float32 logits
MOST_SCALE = 2.0  # of estimates of log Z: at larger ones level 0 overestimates its rows
FINITE = np.finfo(np.float32).min, np.finfo(np.float32).max
ONE_LEVEL, MORE_LEVELS = ("stretch", "triangle", "order"), ("first", "starts")


def _check_arrays(arrays: Arrays) -> None:
    count, dim = arrays["directions"].shape
    levels = "middle" in arrays
    kind = "float16" if levels else "float32"
    if arrays["directions"].dtype != kind:
        raise ValueError(f"directions has {arrays['directions'].dtype}, needed: {kind}")
    if count > dim or (levels and count < dim):
        allowed = dim if levels else f"1 .. {dim}"
        raise ValueError(f"directions has {count} rows, allowed: {allowed}")
    # With levels `norms` may be there, from an earlier version.
    one = *ONE_LEVEL, "norms"
    needed, others = (MORE_LEVELS, ONE_LEVEL) if levels else (one, MORE_LEVELS)
    for name in others:
        if name in arrays:
            other = "as the levels of earlier versions did" if levels else "which needs levels"
            raise ValueError(f"holds a tensor {name!r}, {other}")
    for name in needed:
        if name not in arrays:
            raise ValueError(f"holds no tensor {name!r}")
    (_check_levels if levels else _check_widths)(arrays)
    rows = len(arrays["coarse" if levels else "order"])
    if len(arrays["fine"]) != rows:
        raise ValueError(f"fine has {len(arrays['fine'])} rows, needed: {rows}")


def _check_widths(arrays: Arrays) -> None:
    if not (np.isfinite(arrays["norms"]) & (arrays["norms"] >= 0)).all():
        raise ValueError("norms are not all finite and 0 or more")
    size, fine = arrays["coarse"].shape[1], arrays["fine"].shape[1]
    coarse = widths_of(arrays).coarse
    if fine % 64 or fine > MAX_CODE_BYTES:
        raise ValueError(f"fine has {fine} bytes a row, needed: 64, 128, ... {MAX_CODE_BYTES}")
    if size % (LANES * LANES) != LANES * COARSE_EXTRA or not 0 < coarse <= fine:
        raise ValueError(f"coarse has {size} bytes a group, needed: 16 (12 + 16, 32, ... {fine})")


def _check_levels(arrays: Arrays) -> None:
    size, fine = arrays["coarse"].shape[1], arrays["fine"].shape[1]
    coarse, tail, padded = widths_of(arrays)
    starts, step = arrays["starts"][:STEP].astype(np.int64), int(arrays["starts"][STEP])
    if step not in STEPS or (starts < 0).any() or (starts + (LAST << step) >= INFINITE).any():
        raise ValueError(f"starts has {[*starts.tolist(), step]}, no codes of finite numbers")
    if fine % LANES or not 0 < padded <= MAX_TAIL or padded % TAIL_QUANTUM:
        allowed = f"16 ({LEVEL_EXTRA} + 16, 32, ... {MAX_TAIL // 4})"
        raise ValueError(f"fine has {fine} bytes a group, needed beside middle: {allowed}")
    if size % LANES or coarse % LANES or not 0 < coarse <= MAX_CODE_BYTES:
        allowed = f"16 ({LEVEL_EXTRA} + 16, 32, ... {MAX_CODE_BYTES})"
        raise ValueError(f"coarse has {size} bytes a group, needed beside middle: {allowed}")
    if not padded - TAIL_QUANTUM < tail <= padded:
        got = f"directions has {coarse + tail} rows"
        raise ValueError(f"{got}, not the {coarse} and {padded} of the codes")
    needed = [len(arrays["coarse"]), LANES * (padded // 8 + LEVEL_EXTRA)]
    for name in ("first", "middle"):
        if list(arrays[name].shape) != needed:
            raise ValueError(f"{name} is {list(arrays[name].shape)}, needed: {needed}")


SKETCH = PartSpec(
    "sketch",
    {
        "directions": TensorSpec("float32 or float16", ("P", "D")),
        "stretch": TensorSpec("float32", ("D",), "factors", optional=True),
        "triangle": TensorSpec("float32", ("P", "P"), optional=True),
        "coarse": TensorSpec("uint8", (f"V/{LANES}", "S"), "codes"),
        "first": TensorSpec("uint8", (f"V/{LANES}", "M"), "codes", optional=True),
        "middle": TensorSpec("uint8", (f"V/{LANES}", "M"), "codes", optional=True),
        "starts": TensorSpec("int32", (STEP + 1,), "codes", optional=True),
        "fine": TensorSpec("uint8", ("N", "T"), "codes"),
        "order": TensorSpec("int32", ("V",), "ids", "V", optional=True),
        "limits": TensorSpec("float64", (5,)),
        "norms": TensorSpec("float64", (6,), optional=True),
    },
    structure=_check_arrays,
    values=lambda arrays: all_different(arrays, ids="order") if "order" in arrays else None,
)


class SketchHead(Head):
    """Bounds every row of W, and computes the rows that may be among the best.

    A row's top k is wrong with a chance of at most `max_error`, over the random rotation of the
    index, for contexts that do not depend on it (docs/levels.md). Bounds and log Z are proven.

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
    limits = by_knob(max_error=lambda arrays, _: 1.0 if "middle" in arrays else 0.0)

    def _prepare(self) -> None:
        self._ordered = {"order": np.arange(self._vocab_size, dtype=np.int32), **self._arrays}
        self.quick_best = self._levels = "middle" in self._arrays

    def _apply_knobs(self) -> None:
        self.max_error = self.knobs["max_error"]
        self.estimates_log_z = self._levels and not self.proves
        self.most_rows = MAX_LEVEL_ROWS if self.proves and self._levels else ANY_ROWS
        descriptor = sketch_descriptor(self._softmax.descriptor, self._ordered, self.max_error)
        self._describe(descriptor, self._arrays["coarse"].nbytes)

    def _answer_checked(self, hidden: Float32, rows: int, k: int) -> TopK:
        if rows > self.most_rows:
            return self._exact.topk(hidden, k)
        return super()._answer_checked(hidden, rows, k)

    def best_with_log_z(self, hidden: Float32, k: int, scale: float = 1.0) -> BestWithLogZ:
        """Estimate log Z from the exact logits of the rows computed, and the codes of all others.

        By `certified`, and for a k of most of V, it is proven from all logits.
        """
        few = 2 * FIRST_ROWS * k <= self._vocab_size
        if not (self.estimates_log_z and few and scale <= MOST_SCALE):
            return super().best_with_log_z(hidden, k, scale)
        rows = len(hidden)
        best = empty_best(rows, k)
        found = *best[:4], best.scanned
        fill = partial(sketch_log_z.entry(), self._address, hidden, scale, *found)
        refuse_first(run_slices(fill, rows, self._threads))
        return best

    def candidates(self, hidden: ArrayLike, k: int) -> Candidates:
        """Return the rows that `topk` computes; `upper` bounds all others, +inf without proof."""
        hidden, _, k = ready_request(hidden, k, self._dim, self._vocab_size)
        bad, *candidates = certified_candidates(self._address, hidden, k)
        refuse_first([bad])
        if not self.proves:
            candidates[-1].fill(np.inf)
        return Candidates(*candidates)

    def bounds(self, hidden: ArrayLike, k: int = 1) -> Bounds:
        """Bound every logit of one row of hidden [D], exactly for those `topk` computes."""
        hidden = ready_hidden(hidden, self._dim)[:1]
        candidates = self.candidates(hidden, k)
        bounds = np.empty((2, self._vocab_size), np.float32)
        certified_bounds(self._address, hidden, bounds[0], bounds[1])
        bounds[:, candidates.ids] = candidates.logits
        # Printed logits are rounded.
        outward = np.nextafter(bounds, np.array([[-np.inf], [np.inf]], np.float32)).clip(*FINITE)
        log_z = np.empty((2, FIELDS))
        ends = np.arange(3, dtype=np.int64) * self._vocab_size
        csr_log_z(ends, outward.ravel().astype(np.float64), 1.0, log_z)
        low, high = np.nextafter(log_z[[0, 1], TOP] + log_z[[0, 1], [LOW, HIGH]], [-np.inf, np.inf])
        high = high if np.isfinite(bounds[1]).all() else np.inf
        return Bounds(
            candidates.ids, candidates.logits, bounds[0], bounds[1], float(low), float(high)
        )

    def log_z(
        self, hidden: Float32, scale: float, edits: Edits | None = None, width: float = inf
    ) -> Float64:
        """Return [B, 4] an estimate of log Z of all e^{scale x} and bounds, at most `width` apart.

        With levels, and for rows that would need too many logits, it takes all of them, in float32
        if that suffices.
        """
        if self._levels:
            return self._dense_log_z(hidden, scale, edits, width)
        seeds, width = np.zeros(len(hidden), np.uint64), min(width, WIDEST_LOG_Z)
        options = DrawOptions(0, seeds, scale=scale, edits=edits, width=width)
        (_, log_z, _), found = self._draw_by_bounds(hidden, options)
        if not found.all():
            rest = np.flatnonzero(~found)
            changed = edits and edits_of_rows(edits, rest)
            log_z[rest] = self._dense_log_z(hidden[rest], scale, changed, width)
        return log_z

    def _dense_log_z(
        self, hidden: Float32, scale: float, edits: Edits | None, width: float
    ) -> Float64:
        log_z, off = np.empty((len(hidden), FIELDS)), scale * self._exact.quick_slack(hidden)
        plain = DENSE_ERROR * off <= width
        for rows, find in ((plain, self._exact.quick_log_z), (~plain, self._exact.log_z)):
            if rows.any():
                changed = edits and edits_of_rows(edits, np.flatnonzero(rows))
                log_z[rows] = find(hidden[rows], scale, changed)
        return log_z

    def draw(self, hidden: Float32, options: DrawOptions) -> Drawn:
        """Return the draws of head `exact` for each row of hidden [B, D], and an interval of log Z.

        Rows with too wide bounds get all logits, or all rows do if that takes less time, as it does
        with levels.
        """
        by_all = options.samples * PRODUCTS_A_DRAW >= self._vocab_size * self._dim
        if by_all or self._levels:
            return self._exact.draw(hidden, options)
        drawn, found = self._draw_by_bounds(hidden, options)
        if not found.all():
            rest = np.flatnonzero(~found)
            others = self._exact.draw(hidden[rest], options.rows(rest))
            drawn.ids[rest], drawn.log_z[rest], drawn.scanned[rest] = others
        return drawn

    def _draw_by_bounds(self, hidden: Float32, options: DrawOptions) -> tuple[Drawn, Bool]:
        """Return the draws, and [B] False for rows that need all logits; these are unset."""
        rows = len(hidden)
        samples, seeds, step, scale, edits, top_p, min_p, width, first_id = options
        drawn = Drawn(
            np.empty((rows, samples), np.int32), np.empty((rows, FIELDS)), np.empty(rows, np.int32)
        )
        found = np.empty(rows, np.bool_)
        asked = seeds, step, scale, top_p, min_p, width, first_id, self._places
        answers = *(edits or no_edits(rows)), *drawn, found
        draw = partial(interval_sample.entry(), self._address, hidden, *asked, *answers)
        refuse_first(run_slices(draw, rows, self._threads))
        return drawn, found

    @cached_property
    def _exact(self) -> ExactHead:
        return ExactHead(self._softmax, threads=self._threads)

    @cached_property
    def _places(self) -> Int32:
        order = self._ordered["order"]
        places = np.empty(len(order), np.int32)
        places[order] = np.arange(len(order), dtype=np.int32)
        return places

    def warm(self) -> None:
        super().warm()
        zeros, seeds = np.zeros((1, self._dim), np.float32), np.zeros(1, np.uint64)
        self.draw(zeros, DrawOptions(1, seeds))
        self.log_z(zeros, 1.0)
