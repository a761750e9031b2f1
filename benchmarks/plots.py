"""Pictures of raw results: `python -m benchmarks.plots`.

A race's are like Figures 2 to 7 of Chen et al. 2019: speed-up over the best exact float32 search
against precision, the settings of each method that no other of its own settings beats in both. One
panel for P@1, one for P@5.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot

from benchmarks import raw
from benchmarks.llamacpp.contenders import BODY, PEER
from benchmarks.race.points import FLOAT32, Race
from benchmarks.tables import engines
from benchmarks.tables.races import BATCHES

IMAGES = raw.RESULTS.parents[1] / "docs/images"
SCREEN, SPEED = IMAGES / "screen.svg", IMAGES / "speed.svg"
OWN = "wheel", "ik"  # `speed.svg` shows the own output layers of these builds
COLOURS = {"logitsieve screen": "#1b7f5c", "logitsieve full": "#6fb79c"}
STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "logitsieve",
    "figure.facecolor": "white",
}
LEAST_PRECISION = 0.5
OURS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c6d31")
OTHERS = ("#555555", "#999999")  # told apart by their marks
NARROW = ("#8a5a44", "#c2977c")  # dense heads of fewer bits
MARKS = "osD^vP*X<>hd"
SHOWN = {  # of `methods.svg`: the label of a line, and its methods
    "llama.cpp": ["llama.cpp Q8_0"],
    "int8 scan": ["int8 scan, rescored"],
    "faiss": ["faiss PQ fast scan, refined"],
    "hnswlib": ["hnswlib l2"],
    "ScaNN": ["ScaNN"],
    "sketch": [f"logitsieve {grade}" for grade in raw.GRADED],
}
LEAST_SHOWN, TIMES = 0.9, (1000, 2000, 5000, 10_000, 20_000, 50_000)
BESIDE: dict[str, Any] = {"textcoords": "offset points", "fontsize": 9, "annotation_clip": False}
FUNNELS = {"sketch 0": "proven", "sketch 1e-15": "max_error = 1e-15"}
STAGES = (
    "all rows: level 0", "left: 1 bit each", "left: 2 bits", "left: 4 bits", "left: computed",
    "the answer",
)  # fmt: skip


def main() -> None:
    """Draw the pictures of all raw results."""
    draw_screen(raw.load("screen"), SCREEN)
    draw_engines(SPEED)
    draw_funnel(raw.load("funnel"), IMAGES / "funnel.svg")
    draw_methods(raw.load("race/gemma-3-270m"), IMAGES / "methods.svg")
    if BATCHES.exists():
        draw_batches(raw.load("batches"), raw.RESULTS / "batches.svg")
    for source in sorted(raw.RESULTS.glob("race/*.json.gz")):
        results = raw.read(source)
        if "points" in results:
            draw_race(results, source.parent)


@contextmanager
def picture(path: Path, columns: int, size: tuple[float, float]) -> Iterator[tuple[Any, Any]]:
    """A figure and its panels side by side, written to `path` at the end."""
    mpl.use("svg")
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        figure, panels = pyplot.subplots(1, columns, figsize=size, sharey=True)
        yield figure, panels
        figure.tight_layout()
        figure.savefig(path, metadata={"Date": None}, bbox_inches="tight")
        pyplot.close(figure)


def draw_screen(results: dict[str, Any], path: Path) -> None:
    """us/row of each way to the top 5, one panel a batch size."""
    batches = ("1", "64")
    with picture(path, len(batches), (9, 2.9)) as (figure, panels):
        for axes, batch in zip(panels, batches, strict=True):
            times = results["us_per_row"][batch]
            names = sorted(times, key=lambda name: -times[name]["median"])
            values = [times[name]["median"] for name in names]
            bars = axes.barh(names, values, color=[COLOURS.get(name, "#b9bec4") for name in names])
            axes.bar_label(bars, [f"{value:.3g}" for value in values], padding=3)
            title = "1 row per call" if batch == "1" else f"{batch} rows per call"
            axes.set(xlabel="µs per row", title=title)
            axes.set_xlim(0, max(values) * 1.2)
        figure.suptitle(
            f"Top 5 of {results['vocab_size']:,} words, D = {results['dim']}, one thread; the "
            f"screen finds {results['p1']:.2%} of the best words, {results['p5']:.2%} of the best "
            "five",
            fontsize=10,
        )


def draw_engines(path: Path) -> None:
    """Tokens a second of one thread, the mean of all kinds of text: one panel a model."""
    shown = [each for each in engines.ways(engines.FILE) if each[1:3] == ("greedy", "1")]
    ours = {
        "logitsieve, proven": engines.PROOF,
        "logitsieve, max_error 1e-15": engines.DEFAULT,
        "logitsieve, max_error 1e-3": engines.LOOSE,
        "no output layer: the limit": BODY,
    }
    with picture(path, len(shown), (3.6 * len(shown), 2.3)) as (_, panels):
        for axes, (model, _, _, kinds) in zip(np.atleast_1d(panels), shown, strict=True):
            build = engines.best(kinds, engines.DEFAULT)
            rates = {f"{engines.ENGINES[name]}'s own": (name, PEER) for name in OWN}
            rates |= {name: (build, each) for name, each in ours.items()}
            values = [engines.mean(kinds, *each) for each in rates.values()]
            bars = axes.barh(
                [*rates], values, color=[*["#b9bec4"] * 2, *["#1b7f5c"] * 3, "#e4e6e9"]
            )
            axes.bar_label(bars, [f"{value:.1f}" for value in values], padding=3)
            axes.set(title=model, xlim=(0, max(values) * 1.2))
            axes.set_xticks([])
            axes.tick_params(left=False)
            axes.spines["bottom"].set_visible(False)
        axes.invert_yaxis()


def draw_batches(results: dict[str, Any], path: Path) -> None:
    """Microseconds a row by B, both on log scales: one panel an index."""
    indexes = results["indexes"]
    with picture(path, len(indexes), (1 + 3.4 * len(indexes), 3.2)) as (_, panels):
        panels = np.atleast_1d(panels)
        for axes, (name, about) in zip(panels, indexes.items(), strict=True):
            for (head, times), mark, colour in zip(
                about["us_per_row"].items(), cycle(MARKS), cycle(OURS), strict=False
            ):
                sizes = list(map(int, times))
                axes.plot(sizes, [*times.values()], marker=mark, color=colour, label=head)
            axes.set(xscale="log", yscale="log", title=name, xlabel="rows a call")
            axes.set_xticks(sizes[::2], sizes[::2], fontsize=7, minor=False)
            axes.minorticks_off()
            axes.legend(frameon=False, fontsize=7)
        panels[0].set_ylabel("µs a row")


def draw_race(results: dict[str, Any], out: Path) -> None:
    """<data>.svg, of the first mode: one row a call on one thread."""
    mode = results["modes"][0]
    with picture(out / f"{results['data']}.svg", 2, (11, 4.6)) as (figure, panels):
        for axes, metric in zip(panels, ("p1", "p5"), strict=True):
            panel(axes, results, mode, metric)
        panels[0].set_ylabel("times as fast as the best exact float32 search")
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="center left", bbox_to_anchor=(0.99, 0.5), frameon=False)
        figure.suptitle(f"{results['data']}: {Race(results).shape}, {mode}", fontsize=11)


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
        colour, mark = next(ours if mine else narrow if each.is_narrow(name) else others)
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


def draw_methods(results: dict[str, Any], path: Path) -> None:
    """Microseconds a row against the share of best ids missed: SHOWN, each named at its line."""
    each, mode = Race(results), results["modes"][0]
    floor = 0.5 / results["judged_contexts"]
    with picture(path, 1, (7.5, 4.2)) as (_, axes):
        for (label, names), colour in zip(SHOWN.items(), OURS, strict=False):
            points = [
                (1 - max(1 - entry["p1"], floor), -entry["us_per_row"][mode]["median"])
                for name in names
                for entry in each.of(name)
                if entry["p1"] >= LEAST_SHOWN
            ]
            kept = points if len(names) > 1 else frontier(points)
            ours = label == "sketch"
            x, y = [1 - precision for precision, _ in kept], [-us for _, us in kept]
            line = {"color": "#1b7f5c" if ours else colour, "linewidth": 3 if ours else 1.2}
            axes.plot(x, y, marker="o", markersize=6 if ours else 4, **line)
            if ours:
                for name, us in zip(names, y, strict=True):
                    grade = name.rpartition(" ")[2]
                    text = "proven" if grade == "0" else f"max_error {grade}"
                    axes.annotate(f"{label}, {text}", (x[0], us), (9, -4), **BESIDE)
            else:
                fastest = (x[-1], y[-1])
                below = -14 if fastest[0] > floor else 8
                axes.annotate(label, fastest, (0, below), ha="center", **BESIDE, color=colour)
        axes.set(xscale="log", yscale="log", xlim=(1 - LEAST_SHOWN, floor * 0.8))
        axes.set(ylim=(TIMES[0] * 0.55, TIMES[-1]))
        axes.set(xlabel="share of the best tokens that are missed", ylabel="µs a row")
        ticks = [tick for tick in (0.1, 0.03, 0.01, 0.003, 0.001) if tick > floor * 1.5]
        axes.set_xticks(
            [*ticks, floor], [*(f"{tick:.1%}".replace(".0", "") for tick in ticks), "none"]
        )
        axes.minorticks_off()
        axes.set_yticks(TIMES, [f"{us:,}" for us in TIMES])
        axes.grid(color="#eeeeee")


def draw_funnel(results: dict[str, Any], path: Path) -> None:
    """Rows that are left after each level: one panel a grade, widths on a log scale."""
    vocab_size, left = results["vocab_size"], results["left"]
    with picture(path, len(FUNNELS), (4.4 * len(FUNNELS), 3.0)) as (_, panels):
        for axes, (label, title) in zip(panels, FUNNELS.items(), strict=True):
            counts = [vocab_size, *left[label], 1]
            widths = [max(np.log10(count), 0.08) for count in counts]
            bars = axes.barh(STAGES, widths, left=[-w / 2 for w in widths], color="#6fb79c")
            bars[-1].set_color("#1b7f5c")
            for bar, count in zip(bars, counts, strict=True):
                middle = bar.get_y() + bar.get_height() / 2
                place = (0, middle) if count > 30 else (0.35, middle)
                side = "center" if count > 30 else "left"
                axes.annotate(f"{count:,.0f}", place, ha=side, va="center")
            axes.set_title(title)
            axes.set_xticks([])
            axes.tick_params(left=False)
            for side in ("left", "bottom"):
                axes.spines[side].set_visible(False)
        panels[0].invert_yaxis()


def frontier(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """(precision, speed) that no other point beats in both, from precise to fast."""
    kept: list[tuple[float, float]] = []
    for precision, speed in sorted(points, reverse=True):
        if not kept or speed > kept[-1][1]:
            kept.append((precision, speed))
    return kept


if __name__ == "__main__":
    main()
