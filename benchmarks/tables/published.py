"""Published models: races by kind of text, tokens a second in llama.cpp and in Transformers."""

import re
import statistics
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any, NamedTuple

from benchmarks.llamacpp.contenders import BODY, DRAWN, HEADS, PEER
from benchmarks.race.points import BATCH, ONE, Race, Record, chosen_by
from benchmarks.raw import load
from benchmarks.tables.figures import ABSENT, digits, markdown, ratio
from benchmarks.tables.races import shown
from demo.published import MODELS

OWN = "llama.cpp Q8_0"
ENOUGH = 0.998  # P@1 that counts as an answer
MOST = 0.95  # P@1 of what is shown


def race(name: str) -> str:
    """A row for each method that is no slower than llama.cpp's product and finds most best tokens.

    It shows the fastest setting with enough precision, or else the most precise one.
    """
    results = load(f"race/{name}")
    each = Race(results)
    points = {method: chosen(each.of(method)) for method in each.methods}
    own = points[OWN]
    rows = []
    for method, point in points.items():
        if point["p1"] < MOST or faster(point, own, ONE) < 1:
            continue
        least, worst = min((p1, kind) for kind, p1 in point["p1_by_kind"].items())
        rows.append(
            [
                shown(method),
                *(times(point, own, mode) for mode in (ONE, BATCH)),
                f"{point['p1']:.4f}" + f" ({least:.4f} {worst})" * (least < 1),
                f"{point['bytes_beyond_w'] / results['weight_bytes']:.2f}",
            ]
        )
    head = ["µs a row (times as fast as llama.cpp's own head)", "B = 1", "B = 64"]
    head += ["P@1 (the least, of a kind)", "memory over W's"]
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
    return f"{digits(point['us_per_row'][mode]['median'])} ({ratio(faster(point, own, mode))})"


def faster(point: Record, own: Record, mode: str) -> float:
    us, peer = (float(one["us_per_row"][mode]["median"]) for one in (point, own))
    return peer / us


class Run(NamedTuple):
    """One way of llamacpp.json.gz: a model, a build, a kind of text and a number of threads."""

    model: str
    label: str
    about: str  # CPU and build
    kind: str
    threads: str
    found: dict[str, dict[str, list[float]]]

    @property
    def per_s(self) -> dict[str, float]:
        return {name: found["tokens_per_s"][0] for name, found in self.found.items()}


def runs(way: str, file: str = "llamacpp") -> Iterator[Run]:
    for model, found in load(file).items():
        shape = f"{model}: V = {found['index']['vocab_size']:,}, D = {found['index']['dim']:,}"
        for build, one in found.get("builds", {}).items():
            label = shape if build == "wheel" else f"{shape}, {build} build"
            about = f"{one['cpu']}; {one['name']}: {instructions(one['system_info'])}."
            for kind, by_threads in one.get(way, {}).items():
                for threads, times in by_threads.items():
                    yield Run(model, label, about, kind, threads, times)


def instructions(system_info: str) -> str:
    """Return the CPU features that llama.cpp reports as present."""
    return ", ".join(re.findall(r"(\w+) = 1", system_info))


def fastest(
    file: str = "llamacpp", ways: Collection[str] = ("greedy",), about_builds: bool = True
) -> str:
    """A row for each model, way and number of threads: each kind by llama.cpp's fastest build."""
    found: dict[tuple[str, ...], dict[str, dict[str, float]]] = {}
    of_ways = [(way, run) for way in ways for run in runs(way, file)]
    for way, run in of_ways:
        if run.threads == "1" or about_builds:
            kinds = found.setdefault((run.model, way, run.threads), {})
            if run.per_s[PEER] > kinds.get(run.kind, {PEER: 0.0})[PEER]:
                kinds[run.kind] = run.per_s
    names, rows = [*HEADS, BODY], []
    for (model, way, threads), kinds in found.items():
        own = sorted(per_s[PEER] for per_s in kinds.values())
        named = [model] + [way] * (len(ways) > 1)
        named += ["one thread" if threads == "1" else f"{threads} threads"] * about_builds
        cells = [", ".join(named), f"{digits(own[0])} to {digits(own[-1])}"]
        for name in names:
            times = sorted(one[name] / one[PEER] for one in kinds.values() if name in one)
            cells.append(f"{times[0]:.2f}x to {times[-1]:.2f}x" if times else ABSENT)
        rows.append(cells)
    kept = [name for i, name in enumerate(names, 2) if any(row[i] for row in rows)]
    head = ["tokens a second", "llama.cpp", *(f"`{name}`" for name in kept if name != BODY)]
    table = markdown([*head, "no head"], [[cell for cell in row if cell] for row in rows])
    about = dict.fromkeys(run.about for _, run in of_ways)
    return "\n".join([table, *about, ""]) if about_builds else table


def judged() -> str:
    """A row for each model: tokens of all kinds of text, by all heads but `full`."""
    grades = (name for name in HEADS if any(name in one for _, one in judgements()))
    heads = [PEER, *(name for name in grades if name != "full")]
    rows = []
    for name in dict.fromkeys(name for name, _ in judgements()):
        ones = [one for model, one in judgements() if model == name]
        tokens = sum(max(each["tokens"] for each in one.values()) for one in ones)
        found = ([one[head] for one in ones if head in one] for head in heads)
        rows.append([f"{name}, {tokens:,}", *(wrong(each) if each else ABSENT for each in found)])
    names = (name if name == PEER else f"`{name}`" for name in heads)
    return markdown(["model, tokens", *names], rows)


def judgements() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each model with what was counted for each head, once for each kind of text."""
    for name, found in load("llamacpp").items():
        for one in found.get("judged", {}).values():
            yield name, one


def wrong(ones: list[dict[str, Any]]) -> str:
    """How many tokens differ, as a share too, and how many were proven."""
    tokens, many = (sum(one[field] for one in ones) for field in ("tokens", "wrong"))
    proven = sum(one.get("proven") or 0 for one in ones) / tokens
    share = f" ({many / tokens:.2%})" * bool(many)
    return f"{many:,}{share}" + f", {proven:.0%} proven" * bool(proven)


def adapter() -> str:
    """A row for each model and way of generating: whole steps, and the output layer alone."""
    rows, heads = [], []
    for name, found in load("huggingface").items():
        for way, by_head in found["ways"].items():
            heads = [f"`{head}`" for head in by_head]
            times = {
                key: [one[key]["median"] for one in by_head.values()]
                for key in ("full_us", "layer_us", "attached_us", "head_us")
            }
            full, layer = (digits(statistics.median(times[key])) for key in ("full_us", "layer_us"))
            cells = (
                f"{full / ours:.2f}x ({layer / head:.1f}x)"
                for full, layer, ours, head in zip(*times.values(), strict=True)
            )
            same = min(one["same"] for one in by_head.values())
            rows.append([name, way, f"{full} ({layer})", *cells, f"{same:.0%}"])
    return markdown(["model", "way", "µs a step (the layer)", *heads, "same ids"], rows)


TABLES: dict[str, Callable[[], str]] = {
    **{f"race, {name}": partial(race, name) for name in MODELS},
    "llamacpp": fastest,
    "llamacpp-drawn": partial(fastest, "llamacpp-drawn", DRAWN, about_builds=False),
    "llamacpp-judged": judged,
    "huggingface": adapter,
}
