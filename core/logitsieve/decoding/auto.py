"""AUTO: choose the fastest measured point for a request that names no head.

It meets the request's precision or the index's target, or proves its answers. Times are of the
measured batch size nearest to the request's rows.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from logitsieve.api.errors import InvalidKnob
from logitsieve.api.keywords import KnobValues, OverAll, PointRequest
from logitsieve.decoding.normalizers import EXACT
from logitsieve.evaluation import OperatingPoint, cpu_name, read_points, read_target
from logitsieve.evaluation.operating_points import Setting, k_class, nearest, setting_of
from logitsieve.heads import HEADS
from logitsieve.heads._base.head import checked_k
from logitsieve.heads._base.kernel_head import Head
from logitsieve.index import Index
from logitsieve.index.files import unreadable
from logitsieve.index.manifest import CALIBRATION_FILE

# A proof from at most half of W counts as so many times faster: times have noise.
MARGIN = 1.15

Goal = Mapping[int, float]  # class of k -> precision
Refuted = Callable[[OperatingPoint, Goal], bool]


class Auto:
    """The choice among measured points. Immutable and thread-safe.

    `target`, k -> precision, is the build's; without one, the default head `stored` will do.
    """

    def __init__(
        self,
        points: Sequence[OperatingPoint],
        target: Goal,
        vocab_size: int,
        stored: Setting = ("exact", ()),
    ) -> None:
        self.points = tuple(points)
        self.target = dict(target)
        self.measured = {point.setting: point for point in points}
        self._vocab_size, self._stored = vocab_size, stored
        self.drawing_head = self._drawing_head()
        batches = sorted({batch for point in points for batch in point.us_per_row}) or [1]
        # The fastest first; of equals the proven one.
        self._fastest = {
            batch: sorted(points, key=lambda point: (self._counted(point, batch), not point.proven))
            for batch in batches
        }
        self._batch_of = tuple(nearest(batches, rows) for rows in range(batches[-1] + 1))

    @property
    def batches(self) -> tuple[int, ...]:
        """The measured batch sizes, ascending."""
        return tuple(self._fastest)

    def batch(self, rows: int) -> int:
        """Return the measured batch size nearest to `rows` a call, in ratio."""
        return self._batch_of[min(rows, len(self._batch_of) - 1)]

    def k_class(self, k: int, precision: float | None) -> int:
        """Return the class of `k`, 0 for the index's own target; InvalidRequest outside 1 .. V."""
        return 0 if precision is None else k_class(checked_k(k, self._vocab_size))

    def goal(self, k: int, precision: float | None) -> Goal:
        """Return a request's goal by class of k; `precision` None: the index's target."""
        return self.target if precision is None else {k: precision}

    def choose(
        self, rows: int, k: int, precision: float | None, refuted: Refuted | None = None
    ) -> Setting:
        """Return the head and knobs of the fastest point at `rows` a call.

        It meets `precision` at class `k`; for BEYOND only a proof does. The fastest proven point
        replaces one that live answers `refuted`. Without measurements: the default head, or `exact`
        for a precision.
        """
        goal, points = self.goal(k, precision), self._fastest[self.batch(rows)]
        point = next((point for point in points if self._meets(point, goal)), None)
        if point is not None and refuted is not None and refuted(point, goal):
            point = next((point for point in points if point.proven), None)
        if point is None:
            return self._stored if precision is None else ("exact", ())
        return point.setting

    def choices(self, precision: float | None, ks: Sequence[int]) -> list[dict[str, Any]]:
        """Return the chosen points as plain facts, None if not measured."""
        taken = []
        for k, rows in product(ks, self.batches):
            head, knobs = self.choose(rows, k, precision)
            point = self.measured.get((head, knobs))
            taken.append(
                {
                    "k": k,
                    "rows": rows,
                    "head": head,
                    "knobs": dict(knobs if point is None else point.knobs),
                    "us_per_row": None if point is None else point.us_at(rows),
                    "precision_low": None if point is None else dict(point.low),
                    "proven": HEADS[head].proves,
                }
            )
        return taken

    def _counted(self, point: OperatingPoint, batch: int) -> float:
        """Return the time that decides."""
        few = point.proven and 2 * point.candidates_at(batch) <= self._vocab_size
        return point.us_at(batch) / (MARGIN if few else 1)

    def _drawing_head(self) -> str:
        """Return the measured proving head of draws, the faster of two; "" without any."""
        times = {
            head: min(times)
            for head in ("certified", "exact")
            if (times := [self._counted(each, 1) for each in self.points if each.head == head])
        }
        return min(times, key=times.__getitem__, default="")

    def _meets(self, point: OperatingPoint, goal: Goal) -> bool:
        if not goal:
            return point.proven or point.setting == self._stored
        return all(point.meets(least, k) for k, least in goal.items())


def read_auto(index: Index, head_of: Callable[[str, KnobValues], Head]) -> Auto:
    """Return AUTO over the points of calibration.json; IndexUnreadable names a fault of it."""
    points = []
    for point in read_points(index.measured["points"] if index.measured is not None else ()):
        if point.head not in index.heads:
            continue
        try:
            head = head_of(*point.setting)
        except InvalidKnob as error:
            raise unreadable(index.path / CALIBRATION_FILE, f"points: {error}") from error
        # With all knobs: an older file may lack one.
        points.append(replace(point, proven=head.proves, knobs=dict(head.knobs)))
    stored = head_of("", ())
    return Auto(
        points,
        read_target(index.manifest.config),
        index.vocab_size,
        setting_of(stored.name, stored.knobs),
    )


def proving(
    request: PointRequest, over: OverAll, heads: Collection[str], auto: Auto
) -> PointRequest:
    """Name a proving head in a request over all V that leaves the choice to AUTO.

    The pass over W for the exact log Z of beam steps finds the best ids too.
    """
    if not request.automatic:
        return request
    if over == "steps" and request.normalizer in ("", EXACT.name):
        return request._replace(automatic=False, head=EXACT.name)
    if over == "draws" and request.precision is None:
        head = auto.drawing_head or ("certified" if "certified" in heads else EXACT.name)
        return request._replace(automatic=False, head=head)
    return request


def answers_on(index: Index) -> str:
    """Return the name of the processor or GPU that answers."""
    return index.backend.name if index.backend else cpu_name()


def measured_elsewhere(index: Index) -> str:
    """Return the processor or GPU of the calibration if the index answers on another, else ""."""
    measured_on = "" if index.measured is None else str(index.measured["machine"]["cpu"])
    return "" if measured_on == answers_on(index) else measured_on
