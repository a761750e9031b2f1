"""The points of a race, and the fastest of those that are precise enough."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

HALF, QUANTISED = "dense bfloat16", "dense quantised"
RESCORED = "dense quantised, rescored"
FLOAT32 = ("numpy", "torch", "faiss IndexFlatIP")  # the exact searches that are compared with
ASKED = 0.98
ONE, BATCH = "B=1 threads=1", "B=64 threads=1"
Record: TypeAlias = dict[str, Any]
Precision: TypeAlias = tuple[float, float]  # the least P@1 and P@5
ANY, HIGH, LOW = (0.0, 0.0), (0.998, 0.99), (ASKED, 0.0)
WARM, COLD = "us_per_row", "cold_us_per_row"


class Time(NamedTuple):
    """Microseconds a row of one setting of a method, and its precision."""

    method: str
    us: float
    p1: float
    p5: float


class Race:
    """The points of one dataset."""

    def __init__(self, results: Record) -> None:
        self.results = results
        self.vocab_size: int = results["vocab_size"]
        self.dim: int = results["dim"]
        self.shape = f"V = {self.vocab_size:,}, D = {self.dim:,}"
        self.points: list[Record] = results["points"]
        self.kinds = {point["method"]: point.get("kind", "") for point in self.points}
        self.methods = list(self.kinds)

    def of(self, method: str) -> list[Record]:
        return [point for point in self.points if point["method"] == method]

    def fastest(
        self,
        methods: Callable[[str], bool],
        precise: Precision = ANY,
        mode: str = ONE,
        field: str = WARM,
    ) -> Time | None:
        """The fastest setting with that precision; None where none was timed or has it."""
        p1, p5 = precise
        times = [
            Time(point["method"], point[field][mode]["median"], point["p1"], point["p5"])
            for point in self.points
            if methods(point["method"])
            and chosen_by(point)["p1"] >= p1
            and chosen_by(point)["p5"] >= p5
            and mode in point.get(field, {})
        ]
        return min(times, key=lambda time: time.us, default=None)

    def exact(self, mode: str = ONE, field: str = WARM) -> Time | None:
        """The best exact float32, which speed-ups are over."""
        return self.fastest(lambda name: name in FLOAT32, mode=mode, field=field)

    def narrow(self, mode: str = ONE, field: str = WARM) -> Time | None:
        """The fastest dense head of fewer bits with P@1 >= 0.98; None if no quantised one raced."""
        if all(kind == HALF for name, kind in self.kinds.items() if self.is_narrow(name)):
            return None
        return self.fastest(self.is_narrow, LOW, mode, field)

    def is_narrow(self, method: str) -> bool:
        """True for a head that multiplies all of W, in fewer bits than 32."""
        return self.kinds[method] in (HALF, QUANTISED, RESCORED)

    def head(
        self, name: str, precise: Precision = ANY, mode: str = ONE, field: str = WARM
    ) -> Time | None:
        """The head's fastest setting with that precision."""
        return self.fastest(f"logitsieve {name}".__eq__, precise, mode, field)


def chosen_by(point: Record) -> Record:
    """`p1` and `p5` that a setting is chosen by; older races chose on the contexts that judge."""
    found: Record = point.get("chosen_by", point)
    return found
