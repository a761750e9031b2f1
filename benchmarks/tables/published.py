"""Races on published models: microseconds of each method, by kind of text, over llama.cpp's own."""

from collections.abc import Callable
from functools import partial

from benchmarks.race.points import BATCH, ONE, Race, Record, chosen_by
from benchmarks.race.table import setting
from benchmarks.tables.figures import ABSENT, digits, markdown, ratio
from benchmarks.tables.llamacpp import instructions
from benchmarks.tables.results import load
from demo.published import MODELS

OWN = "llama.cpp Q8_0"
ENOUGH = 0.998  # P@1 that counts as an answer


def race(name: str) -> str:
    """A row for each method, the fastest setting with enough precision, or the most precise."""
    results = load(f"race/{name}")
    each = Race(results)
    points = {method: chosen(each.of(method)) for method in each.methods}
    own = points[OWN]
    rows = []
    for method, point in points.items():
        ours = method.startswith("logitsieve ")
        shown = f"`{method.removeprefix('logitsieve ')}`" if ours else method
        least, worst = min((p1, kind) for kind, p1 in point["p1_by_kind"].items())
        over = {kind: own["us_by_kind"][kind] / us for kind, us in point["us_by_kind"].items()}
        slowest = min(over, key=lambda kind: over[kind], default=None)
        rows.append(
            [
                shown,
                *(times(point, own, mode) for mode in (ONE, BATCH)),
                f"{ratio(over[slowest])} {slowest}" if slowest else ABSENT,
                f"{point['p1']:.4f}",
                f"{least:.4f} {worst}" if least < 1 else ABSENT,
                f"{point['bytes_beyond_w'] / results['weight_bytes']:.2f}",
                setting(point),
            ]
        )
    head = ["µs a row (times as fast as llama.cpp's own head)", "B = 1", "B = 64"]
    head += ["slowest kind of text", "P@1", "least P@1 of a kind", "memory over W's", "setting"]
    return markdown(head, rows) + f"\nllama.cpp: {instructions(results['llama.cpp'])}.\n"


def chosen(own: list[Record]) -> Record:
    """The setting of a method that is shown."""
    enough = [point for point in own if chosen_by(point)["p1"] >= ENOUGH]
    if enough:
        return min(enough, key=lambda point: float(point["us_per_row"][ONE]["median"]))
    return max(own, key=lambda point: float(chosen_by(point)["p1"]))


def times(point: Record, own: Record, mode: str) -> str:
    if mode not in point["us_per_row"]:
        return ABSENT
    us, peer = (one["us_per_row"][mode]["median"] for one in (point, own))
    return f"{digits(us)} ({ratio(peer / us)})"


TABLES: dict[str, Callable[[], str]] = {f"race, {name}": partial(race, name) for name in MODELS}
