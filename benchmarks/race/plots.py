"""Pareto pictures like Figures 2 to 7 of Chen et al. 2019: `python -m benchmarks.race.plots`.

Speed-up over the best exact float32 search against precision, the settings of each method that no
other of its own settings beats in both. One panel for P@1, one for P@5.
"""

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot

from benchmarks import raw
from benchmarks.plots import STYLE
from benchmarks.race.kinds import is_narrow
from benchmarks.race.points import FLOAT32, Race

RESULTS = raw.RESULTS / "race"
LEAST_PRECISION = 0.5
OURS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31")
OTHERS = ("#555555", "#999999")  # told apart by their marks
NARROW = ("#8a5a44", "#c2977c")  # dense heads of fewer bits
MARKS = "osD^vP*X<>hd"


def main() -> None:
    """Draw every dataset whose results are there."""
    for source in sorted(RESULTS.glob("*.json.gz")):
        results = raw.read(source)
        if "points" in results:  # growth.json.gz has a picture of its own
            draw(results, RESULTS)


def draw(results: dict[str, Any], out: Path) -> None:
    """<data>.svg, of the first mode: one row a call on one thread."""
    mpl.use("svg")
    mode = results["modes"][0]
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        figure, panels = pyplot.subplots(1, 2, figsize=(11, 4.6), sharey=True)
        for axes, metric in zip(panels, ("p1", "p5"), strict=True):
            panel(axes, results, mode, metric)
        panels[0].set_ylabel("times as fast as the best exact float32 search")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="center left", bbox_to_anchor=(0.99, 0.5), frameon=False)
        figure.suptitle(
            f"{results['data']}: V = {results['vocab_size']:,}, D = {results['dim']:,}, {mode}",
            fontsize=11,
        )
        figure.tight_layout()
        pyplot.savefig(out / f"{results['data']}.svg", metadata={"Date": None}, bbox_inches="tight")
        pyplot.close(figure)


def panel(axes: Any, results: dict[str, Any], mode: str, metric: str) -> None:
    """Every method's frontier; misses are on a log scale, so that 0.99 and 0.999 lie apart."""
    each = Race(results)
    exact = each.exact(mode)
    assert exact is not None
    floor = 0.5 / results["judged_contexts"]  # half a context missed stands for none
    ours = cycle(zip(OURS, MARKS[: len(OURS)], strict=True))
    others, narrow = (
        cycle(zip(colours * (len(MARKS) // 2), MARKS, strict=True)) for colours in (OTHERS, NARROW)
    )
    for name in each.methods:
        if name in FLOAT32:
            continue
        mine = name.startswith("logitsieve")
        colour, mark = next(ours if mine else narrow if is_narrow(name) else others)
        shown = frontier(
            [
                (1 - max(1 - entry[metric], floor), exact.us / entry["us_per_row"][mode]["median"])
                for entry in each.of(name)
                if entry[metric] >= LEAST_PRECISION
            ]
        )
        axes.plot(
            [1 - precision for precision, _ in shown],
            [speed for _, speed in shown],
            marker=mark,
            markersize=5,
            markerfacecolor=colour if mine else "white",
            color=colour,
            linestyle="-" if mine else "--",
            label=name,
        )
    axes.axhline(1, color="#999999", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel=f"P@{metric[1:]} (log scale of misses)")
    axes.text(
        0.98, 0.98, "better: up and to the right", transform=axes.transAxes, ha="right", va="top"
    )
    axes.set_xlim(LEAST_PRECISION, floor * 0.8)
    ticks = [tick for tick in (0.5, 0.2, 0.1, 0.03, 0.01, 0.003, 0.001) if tick > floor * 1.5]
    axes.set_xticks([*ticks, floor], [*(f"{1 - tick:g}" for tick in ticks), "1"])
    axes.minorticks_off()
    axes.yaxis.set_major_formatter("{x:g}x")
    axes.grid(color="#eeeeee")


def frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """(precision, speed) that no other point beats in both, from precise to fast."""
    kept: list[tuple[float, float]] = []
    for precision, speed in sorted(points, reverse=True):
        if not kept or speed > kept[-1][1]:
            kept.append((precision, speed))
    return kept


if __name__ == "__main__":
    main()
