"""Pictures of the experiments' raw results: `python -m benchmarks.training.plots` draws again."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot
from matplotlib.ticker import NullFormatter

from benchmarks.plots import STYLE
from benchmarks.training.runs import OUT
from benchmarks.training.stages import STAGES

COLOURS = ("#9aa0a6", "#4e79a7", "#76b7b2", "#b07aa1", "#e15759")
Found = dict[str, Any]


@contextmanager
def picture(path: Path) -> Iterator[None]:
    """Whatever is drawn inside is written there."""
    mpl.use("svg")
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        yield
        path.parent.mkdir(parents=True, exist_ok=True)
        pyplot.savefig(path, metadata={"Date": None}, bbox_inches="tight")
        pyplot.close()


def beside(axes: Any) -> None:
    """The legend to the right of the axes, where it hides nothing."""
    axes.grid(color="#eeeeee")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))


def draw_steps(results: Found, out: Path) -> None:
    """steps.svg: stages of a step, a panel a shape; growth.svg: the draws' cost by V."""
    runs = [run for run in results["runs"] if "failed" not in run]
    shapes: dict[str, list[Found]] = {}
    for run in (run for run in runs if run["part"] != "growth"):
        shape = run["settings"]["shape"]
        title = f"V = {shape['classes']:,}, D = {shape['dim']}, B = {shape['rows']}"
        shapes.setdefault(title, []).append(run)
    if shapes:
        with picture(out / "steps.svg"):
            _, panels = pyplot.subplots(
                len(shapes), 1, figsize=(8, 2.2 * len(shapes)), squeeze=False
            )
            for axes, (title, own) in zip(panels[:, 0], shapes.items(), strict=True):
                stages_of(axes, title, own)
            panels[0, 0].legend(
                frameon=False, ncol=5, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1.15)
            )
            pyplot.tight_layout()
    growth = [run for run in runs if run["part"] == "growth"]
    if growth:
        with picture(out / "growth.svg"):
            draw_growth(growth)


def stages_of(axes: Any, title: str, runs: list[Found]) -> None:
    """Bars, the baseline first: where it is more than twice as long as all others it is cut off."""
    first = min(runs, key=lambda run: run["us"][run["baseline"]]["step"])
    rows = [(first["baseline"], first["us"][first["baseline"]], 1.0)]
    rows += [(m := run["settings"]["method"], run["us"][m], run["ratio"]) for run in runs]
    longest, others = (max(us["step"] for _, us, _ in part) for part in (rows, rows[1:]))
    right = 1e-3 * min(2 * others, 1.4 * longest)
    for place, (_, us, ratio) in enumerate(rows):
        left = 0.0
        for stage, colour in zip(STAGES, COLOURS, strict=True):
            label = stage if place == 0 else None
            axes.barh(place, us[stage] / 1000, left=left, color=colour, label=label)
            left += us[stage] / 1000
        number = f"{left:.3g}" if left < 1000 else f"{left:,.0f}"
        shown = f" {number} ms, {ratio:.1f}x"
        axes.text(min(left, 0.75 * right), place, shown, va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, right)
    axes.set(title=title, xlabel="ms a step")


def draw_growth(runs: list[Found]) -> None:
    """Microseconds of the proposal by V, both logarithmic: what is linear climbs with slope 1."""
    _, axes = pyplot.subplots(figsize=(6, 3.2))
    for method in dict.fromkeys(run["settings"]["method"] for run in runs):
        own = [run for run in runs if run["settings"]["method"] == method]
        line = [(r["settings"]["shape"]["classes"], r["us"][method]["proposal"]) for r in own]
        axes.plot(*zip(*sorted(line), strict=True), "o-", label=method)
    shape = runs[0]["settings"]["shape"]
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="classes, V",
        ylabel="µs of the draws of a step",
        title=f"m = {shape['scored']}, B = {shape['rows']}, D = {shape['dim']}",
    )
    beside(axes)


def draw_quality(results: Found, out: Path) -> None:
    """quality.svg: perplexity by step and by second; features.svg: by R and by nu."""
    runs = [run for run in results["runs"] if "failed" not in run and run["seed"] == 1]
    courses = [run for run in runs if run["part"] in ("main", "methods")]
    if courses:
        with picture(out / "quality.svg"):
            draw_courses([(run["method"], run["course"]) for run in courses], "perplexity")
    swept = [run for run in runs if run["part"] in ("features", "nu")]
    if swept:
        with picture(out / "features.svg"):
            draw_swept(swept)


def draw_courses(courses: list[tuple[str, list[Found]]], measure: str) -> None:
    """A measure by step and by second, a line a method."""
    _, panels = pyplot.subplots(1, 2, figsize=(9, 3.6), sharey=True)
    for axes, along in zip(panels, ("step", "seconds"), strict=True):
        for place, (label, course) in enumerate(courses):
            line = [(look[along], look[measure]) for look in course]
            style = "o-" if place < 10 else "s--"
            axes.plot(*zip(*line, strict=True), style, markersize=3, label=label)
        axes.set(xlabel=along)
        axes.grid(color="#eeeeee")
    if measure == "perplexity":
        panels[0].set_yscale("log")
    panels[0].set_ylabel(measure)
    beside(panels[1])
    pyplot.tight_layout()


def draw_swept(runs: list[Found]) -> None:
    """The last perplexity by the option that is swept, a panel a part."""
    parts = list(dict.fromkeys(run["part"] for run in runs))
    _, panels = pyplot.subplots(1, len(parts), figsize=(4.5 * len(parts), 3), squeeze=False)
    for axes, part in zip(panels[0], parts, strict=True):
        own = [run for run in runs if run["part"] == part]
        values = [float(run["method"].rpartition("=")[2]) for run in own]
        axes.plot(values, [run["perplexity"] for run in own], "o-")
        axes.set(xscale="log", xlabel=part, ylabel="perplexity")
        axes.set_xticks(values, [f"{value:g}" for value in values])
        axes.minorticks_off()
        axes.grid(color="#eeeeee")
    pyplot.tight_layout()


def draw_gradients(results: Found, out: Path) -> None:
    """gradients.svg: error and cosine against time; laws.svg: draws by rank, a panel a point."""
    runs = [run for run in results.get("frozen", ()) if "failed" not in run]
    if runs:
        with picture(out / "gradients.svg"):
            draw_errors(runs)
    if "points" in results.get("laws", {}):
        with picture(out / "laws.svg"):
            draw_laws(results["laws"]["points"])


def draw_errors(runs: list[Found]) -> None:
    """A line a loss, a point a size."""
    _, panels = pyplot.subplots(1, 2, figsize=(10, 4))
    losses = list(dict.fromkeys(run["settings"]["method"].partition(":")[0] for run in runs))
    for axes, measure in zip(panels, ("weight_cosine", "weight_error"), strict=True):
        for place, loss in enumerate(losses):
            own = [run for run in runs if run["settings"]["method"].partition(":")[0] == loss]
            line = sorted((run["us"]["method"], run[measure]) for run in own)
            style = "o-" if place < 10 else "s--"
            axes.plot(*zip(*line, strict=True), style, markersize=4, label=loss)
        axes.axvline(runs[0]["us"]["full"], color="#333333", linewidth=1, label="full softmax")
        axes.set(xscale="log", xlabel="µs, forward and backward", title=measure.replace("_", ", "))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xticks((1000, 3000, 10_000, 30_000), ("1,000", "3,000", "10,000", "30,000"))
        axes.grid(color="#eeeeee")
    panels[1].set_yscale("log")
    beside(panels[1])
    pyplot.tight_layout()


def draw_laws(points: Found) -> None:
    """Expected candidates at a rank; the softmax's own draws are black."""
    _, panels = pyplot.subplots(1, len(points), figsize=(4 * len(points), 3.6), sharey=True)
    for axes, (name, point) in zip(panels, points.items(), strict=True):
        edges = point["edges"]
        middles = [(a * b) ** 0.5 if a else b / 2 for a, b in pairwise(edges)]
        for place, (method, found) in enumerate(point["methods"].items()):
            style = {"color": "#000000", "linewidth": 2} if method == "softmax" else {}
            dash = "-" if place < 10 else "--"
            axes.plot(middles, [value or None for value in found], dash, label=method, **style)
        axes.set(xscale="log", yscale="log", xlabel="rank of the class", title=name)
        axes.grid(color="#eeeeee")
    panels[0].set_ylabel("candidates a context")
    beside(panels[-1])
    pyplot.tight_layout()


def draw_extreme(results: Found, out: Path) -> None:
    """extreme-<part>.svg: P@1 by step and by second."""
    runs = [run for run in results["runs"] if "failed" not in run]
    for part in ("skip-gram", "synthetic"):
        own = [run for run in runs if run["part"] == part and run["settings"]["seed"] == 1]
        if own:
            courses = [(run["settings"]["method"], run["course"]) for run in own]
            with picture(out / f"extreme-{part}.svg"):
                draw_courses(courses, "p1")


def draw_clusters(results: Found, out: Path) -> None:
    """clusters.svg: a row a task, how good by step, and where a step's time goes."""
    runs = [run for run in results["runs"] if "failed" not in run]
    tasks = list(dict.fromkeys(run["task"] for run in runs))
    if not tasks:
        return
    with picture(out / "clusters.svg"):
        _, panels = pyplot.subplots(len(tasks), 2, figsize=(10, 3.2 * len(tasks)), squeeze=False)
        for (left, right), task in zip(panels, tasks, strict=True):
            own = [run for run in runs if run["task"] == task]
            measure = "p1" if "p1" in own[0] else "perplexity"
            for run in own:
                line = [(look["step"], look[measure]) for look in run["course"]]
                left.plot(*zip(*line, strict=True), label=run["name"])
            left.set(title=task, xlabel="step", ylabel=measure)
            left.legend(frameon=False, fontsize=7)
            draw_split(right, own)
        pyplot.tight_layout()


def draw_split(axes: Any, runs: list[Found]) -> None:
    """Bars of search, clustering, and the rest."""
    for place, run in enumerate(runs):
        us, start = run["us"], 0.0
        rest = sum(us.values()) - us["proposal"] - us["index"]
        parts = {"search": us["proposal"], "clustering": us["index"], "the rest": rest}
        for (name, taken), colour in zip(parts.items(), COLOURS, strict=False):
            label = name if place == 0 else None
            axes.barh(place, taken / 1000, left=start, color=colour, label=label)
            start += taken / 1000
    axes.set_yticks(range(len(runs)), [run["name"] for run in runs], fontsize=8)
    axes.invert_yaxis()
    axes.set(xlabel="ms a step")
    axes.legend(frameon=False, fontsize=7)


def draw_serving(results: Found, out: Path) -> None:
    """serving.svg: microseconds a row of what each loss trained, with how good it is."""
    runs = [run for run in results["runs"] if "failed" not in run]
    if not runs:
        return
    with picture(out / "serving.svg"):
        _, axes = pyplot.subplots(figsize=(7, 0.8 + 0.6 * len(runs)))
        for shift, (head, colour) in enumerate(
            zip(("screen", "certified"), COLOURS[1:], strict=False)
        ):
            found = [run["heads"][head]["us_per_row"] for run in runs]
            places = [place + 0.4 * shift for place in range(len(runs))]
            bars = axes.barh(places, found, 0.38, color=colour, label=head)
            axes.bar_label(bars, fmt=" %.1f", fontsize=8)
        names = [f"{run['method']}\nperplexity {run['perplexity']:.0f}" for run in runs]
        axes.set_yticks([place + 0.2 for place in range(len(runs))], names, fontsize=8)
        axes.invert_yaxis()
        exact = statistics.median(run["heads"]["exact"]["us_per_row"] for run in runs)
        axes.set(xlabel=f"µs a row, one row a call (exact: {exact:.0f})")
        axes.set_axisbelow(True)
        beside(axes)


DRAW: dict[str, Callable[[Found, Path], None]] = {
    "quality": draw_quality,
    "gradients": draw_gradients,
    "steps": draw_steps,
    "extreme": draw_extreme,
    "clusters": draw_clusters,
    "serving": draw_serving,
}


def main() -> None:
    """Every picture whose results are there."""
    for name, draw in DRAW.items():
        source = OUT / f"{name}.json"
        if source.exists():
            draw(json.loads(source.read_text(encoding="utf-8")), OUT)
        else:
            print(f"{source} is absent: no picture of it")


if __name__ == "__main__":
    main()
