"""AUTO: choose the fastest measured operating point for a request that names no head.

The point reaches the request's precision or the index's target, or is wrong with at most the chance
that the request allows. Times are of the measured batch size nearest to the request's.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from math import inf
from typing import Any

from logitsieve.api.errors import InvalidKnob
from logitsieve.api.keywords import MAX_ERROR, KnobValues, Purpose, ResolvedSpec
from logitsieve.decoding.normalizers import APPROXIMATE, FULL
from logitsieve.decoding.sampler import DRAWING
from logitsieve.evaluation import OperatingPoint, cpu_name, read_points, read_target
from logitsieve.evaluation.operating_points import Setting, k_class, nearest, setting_of
from logitsieve.heads._base.head import checked_k
from logitsieve.heads._base.kernel_head import ANY_ROWS, Head
from logitsieve.heads.sketch import SketchHead
from logitsieve.index import Index
from logitsieve.index.files import unreadable
from logitsieve.index.manifest import CALIBRATION_FILE

# Times are noisy, so a proof that reads at most half of W is preferred up to this factor.
MARGIN = 1.15

CHOICES_KEPT = 1024  # cached by rows, precision and max_error
STEP_PRECISION = 0.99  # default of a beam step's pairs, if the index has no target

PROOF: Setting = FULL.name, ()  # every index has it
SKETCHED = SketchHead.name

Goal = Mapping[int, float]  # class of k -> precision
Refuted = Callable[[OperatingPoint, Goal], bool]


class Auto:
    """Chooses among the measured points. Immutable and thread-safe.

    `target` is the build's, k -> precision. Without it the answer is the default head, `stored`.
    """

    def __init__(
        self,
        points: Sequence[OperatingPoint],
        target: Goal,
        vocab_size: int,
        stored: Setting = PROOF,
        heads: Collection[str] = (),
    ) -> None:
        self.points = tuple(points)
        self.target = dict(target)
        self.measured = {point.setting: point for point in points}
        self._vocab_size, self._stored = vocab_size, stored
        self._proving = SKETCHED if SKETCHED in heads else FULL.name
        batches = sorted({batch for point in points for batch in point.us_per_row}) or [1]
        # Fastest first; a tie goes to the proven point.
        self._fastest = {
            batch: sorted(
                points,
                key=lambda each: (self._counted(each, batch, each.us_at(batch)), not each.proven),
            )
            for batch in batches
        }
        self._batch_of = tuple(nearest(batches, rows) for rows in range(batches[-1] + 1))
        self.stepping = lru_cache(CHOICES_KEPT)(self._stepping)
        self.drawing = lru_cache(CHOICES_KEPT)(self._drawing)

    @property
    def batches(self) -> tuple[int, ...]:
        return tuple(self._fastest)

    def batch(self, rows: int) -> int:
        """Return the measured batch size nearest to `rows`, by ratio."""
        return self._batch_of[min(rows, len(self._batch_of) - 1)]

    def k_class(self, k: int, precision: float | None) -> int:
        """Return the class of `k`, 0 without a precision; InvalidRequest outside 1 .. V."""
        return 0 if precision is None else k_class(checked_k(k, self._vocab_size))

    def goal(self, k: int, precision: float | None, max_error: float | None = None) -> Goal:
        """Return the precision to reach by class of k: the index's target by default."""
        if precision is not None:
            return {k: precision}
        return self.target if max_error is None else {}

    def choose(
        self,
        rows: int,
        k: int,
        precision: float | None,
        max_error: float | None = None,
        refuted: Refuted | None = None,
    ) -> Setting:
        """Return the head and knobs of the fastest suitable point at `rows` a call.

        It reaches `precision` at the class `k` (at BEYOND only a proof does), or without precision
        and target it is within `max_error`, by default MAX_ERROR. If live answers `refuted` it, the
        fastest proven point replaces it. If no point is suitable, a precision gets `full`, a
        `max_error` gets `sketch` or `full`, and a request with neither gets the default head.
        """
        goal, points = self.goal(k, precision, max_error), self._fastest[self.batch(rows)]
        most = MAX_ERROR if max_error is None else max_error
        point = next((point for point in points if _meets(point, goal, most)), None)
        if point is not None and refuted is not None and refuted(point, goal):
            point = next((point for point in points if point.proven), None)
        if point is not None:
            return point.setting
        if precision is not None:
            return PROOF
        return self._stored if max_error is None else _at(self._proving, max_error)

    def most_rows(self, max_error: float) -> int:
        """Return the largest batch for which `sketch` was measured faster than `full`, at least 1.

        `max_error` counts as the next stricter measured one; without any there is no limit.
        """
        graded = {each.max_error: each for each in self.points if each.head == SKETCHED}
        full, stricter = self.measured.get(PROOF), [each for each in graded if each <= max_error]
        if full is None or not stricter:
            return ANY_ROWS
        sketch = graded[max(stricter)]
        faster = [batch for batch in self.batches if sketch.us_at(batch) < full.us_at(batch)]
        if faster and faster[-1] == self.batches[-1]:
            return ANY_ROWS
        return bisect_right(self._batch_of, faster[-1]) - 1 if faster else 1

    def _stepping(self, rows: int, precision: float | None, max_error: float | None) -> Setting:
        """Return the head and knobs of the fastest suitable beam steps; `full` always suits.

        `precision` is by default the target of the largest k, else STEP_PRECISION by a head within
        MAX_ERROR. Only a proof meets a `max_error`, since an estimated log Z does not bound the
        chance of a wrong order.
        """
        most, least = 1.0, precision
        if least is None and max_error is None:
            most = 1.0 if self.target else MAX_ERROR
            least = self.target[max(self.target)] if self.target else STEP_PRECISION
        times = {
            point.setting: point.step_us_at(rows)
            for point in self.points
            if point.step_us and (point.head == FULL.name or _steps(point, least, most))
        }
        return min(times, key=times.__getitem__, default=PROOF)

    def choices(
        self, precision: float | None, ks: Sequence[int], max_error: float | None = None
    ) -> list[dict[str, Any]]:
        """Return the choices for `ks` and all batch sizes as JSON; None for unmeasured facts."""
        taken = []
        for k, rows in product(ks, self.batches):
            head, knobs = self.choose(rows, k, precision, max_error)
            point = self.measured.get((head, knobs))
            taken.append(
                {
                    "k": k,
                    "rows": rows,
                    "head": head,
                    "knobs": dict(knobs if point is None else point.knobs),
                    "us_per_row": None if point is None else point.us_at(rows),
                    "precision_low": None if point is None else dict(point.low),
                    "max_error": None if point is None else point.max_error,
                }
            )
        return taken

    def _counted(self, point: OperatingPoint, batch: int, us: float) -> float:
        few = point.proven and 2 * point.candidates_at(batch) <= self._vocab_size
        return us / (MARGIN if few else 1)

    def _drawing(self, rows: int, max_error: float | None) -> Setting:
        """Return the head for draws from all ids: `sketch`, or `full` if measured to be faster."""
        most = MAX_ERROR if max_error is None else max_error
        able = [each for each in self.points if each.head in DRAWING and each.max_error <= most]
        if not able:
            return _at(self._proving, most)
        batch = self.batch(rows)
        times = ((self._counted(each, batch, each.draw_us_at(batch)), each.head) for each in able)
        return _at(min(times)[1], most)


def _at(head: str, max_error: float) -> Setting:
    return (head, (("max_error", max_error),)) if head == SKETCHED else PROOF


def _steps(point: OperatingPoint, least: float | None, max_error: float) -> bool:
    return least is not None and point.step_low >= least < 1 and point.max_error <= max_error


def _meets(point: OperatingPoint, goal: Goal, max_error: float) -> bool:
    if not goal:
        return point.max_error <= max_error
    return all(point.meets(least, k) for k, least in goal.items())


def read_auto(index: Index, head_of: Callable[[str, KnobValues], Head]) -> Auto:
    """Return AUTO over the points of calibration.json; IndexUnreadable if one is wrong."""
    points = []
    for point in read_points(index.measured["points"] if index.measured is not None else ()):
        if point.head not in index.heads:
            continue
        try:
            head = head_of(*point.setting)
        except InvalidKnob as error:
            raise unreadable(index.path / CALIBRATION_FILE, f"points: {error}") from error
        # This device may use other knobs than were stored.
        points.append(replace(point, max_error=head.max_error, knobs=dict(head.knobs)))
    stored = head_of("", ())
    return Auto(
        points,
        read_target(index.manifest.config),
        index.vocab_size,
        setting_of(stored.name, stored.knobs),
        index.heads,
    )


def fitted_to(spec: ResolvedSpec, purpose: Purpose, auto: Auto, rows: int) -> ResolvedSpec:
    """Name the head for a purpose that needs all V ids, if the spec leaves the choice to AUTO."""
    if not spec.automatic:
        return spec
    if purpose == "steps" and spec.normalizer == FULL.name:
        # The pass over W for the exact log Z also finds the best ids.
        return spec._replace(automatic=False, head=FULL.name)
    unasked = ResolvedSpec(True, None, "", (), APPROXIMATE.name)
    if purpose == "best" and spec == unasked and not auto.target:
        head, knobs = auto.stepping(rows, None, None)
        return spec._replace(automatic=False, head=head, knobs=knobs)
    if purpose == "steps" and not spec.normalizer:
        head, knobs = PROOF
        if spec.width == inf:  # estimates prove no interval
            head, knobs = auto.stepping(rows, spec.precision, spec.max_error)
        normalizer = FULL.name if head == FULL.name else APPROXIMATE.name
        return ResolvedSpec(False, None, head, knobs, normalizer, spec.width)
    if purpose == "draws" and spec.precision is None:
        head, knobs = auto.drawing(rows, spec.max_error)
        return spec._replace(automatic=False, head=head, knobs=knobs)
    return spec


def answers_on(index: Index) -> str:
    """Return the name of the processor or GPU that computes the answers."""
    return index.backend.name if index.backend else cpu_name()


def measured_elsewhere(index: Index) -> str:
    """Return the processor or GPU of the calibration, or "" if it is the one that answers."""
    measured_on = "" if index.measured is None else str(index.measured["machine"]["cpu"])
    return "" if measured_on == answers_on(index) else measured_on
