"""The report's plots, as SVG that follows the page's colours and asks the network for nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import StringIO
from itertools import cycle
from typing import Any, NamedTuple

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import (
    FuncFormatter,
    LogLocator,
    MaxNLocator,
    NullFormatter,
    PercentFormatter,
)

from logitsieve.api.results import Float64

INK = "#010203"  # becomes the colour of the text around the plot
COLOURS = ("#3d87c9", "#d9772b", "#3fa06a", "#a86bc4", "#c95666", "#8f8a3a")
HOLLOW = {"markerfacecolor": "none", "linestyle": ":"}
STYLE: Mapping[str, Any] = {
    "font.size": 10,
    "svg.fonttype": "none",
    "svg.hashsalt": "logitsieve",
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "grid.color"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.15,
    "legend.frameon": False,
}


def speed_precision(points: Sequence[Mapping[str, Any]]) -> str:
    """P@1 and P@5 over microseconds per row, one colour a head; the exact head is the reference.

    `points` as in calibration.json: those of one row per call are filled, the largest batches
    hollow. P@1 is a large circle, P@5 a small square, so that both show where they coincide.
    """
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        axes = _axes(7.5, 4.0)
        heads = dict.fromkeys(point["head"]["name"] for point in points)
        for head, colour in zip(heads, cycle(COLOURS), strict=False):
            of_head = [point for point in points if point["head"]["name"] == head]
            single = [point for point in of_head if point["rows"] == 1]
            if head == "exact":
                axes.axvline(single[0]["us_per_row"], color=colour, linestyle="--", label="exact")
                continue
            largest = max(point["rows"] for point in of_head)
            batched = [point for point in of_head if point["rows"] == largest > 1]
            for k, marker, size in (("1", "o", 10), ("5", "s", 5)):
                style: dict[str, Any] = {"color": colour, "marker": marker, "markersize": size}
                style |= {"markeredgecolor": INK, "markeredgewidth": 0.8, "linewidth": 1}
                label: str | None = f"{_plain(head)} P@{k}"
                hollow = HOLLOW | {"markeredgecolor": colour}
                for chosen, more in ((single, {}), (batched, hollow)):
                    us, precision = _curve(chosen, k)
                    if us:
                        axes.plot(us, precision, label=label, **(style | more))
                        label = None  # one entry of the legend a head
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda us, _: f"{us:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.margins(0.15)
        axes.set(xlabel="µs per row (log scale)", ylabel="precision")
        axes.legend()
        return _svg(axes)


def _plain(name: str) -> str:
    """A name as it is, not as a formula."""
    return name.replace("$", r"\$")


def _curve(points: Sequence[Mapping[str, Any]], k: str) -> tuple[list[float], list[float]]:
    curve = [(p["us_per_row"], p["precision_at"][k]) for p in points if k in p["precision_at"]]
    curve.sort()
    return [us for us, _ in curve], [precision for _, precision in curve]


class Curve(NamedTuple):
    """The screen at each coverage, if it answers the rows of the highest cosines itself."""

    coverage: Float64  # [n] rising to 1
    precision: dict[int, Float64]  # k -> [n] of all rows
    own: dict[int, Float64]  # k -> [n] of the rows that the screen answers itself
    scanned: Float64  # [n] rows of W a context
    stored: float  # the coverage at the knobs of the index


def cascade(curve: Curve) -> str:
    """Precision by k and rows of W over coverage, left to right fewer rows left to the fallback."""
    coverage = curve.coverage
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        figure = Figure(figsize=(7.5, 5.0), layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
        for (k, whole), colour in zip(curve.precision.items(), cycle(COLOURS), strict=False):
            upper.plot(coverage, whole, color=colour, label=f"P@{k}, all rows")
            own, label = curve.own[k], f"P@{k}, its own"
            upper.plot(coverage, own, color=colour, linestyle="--", label=label)
        lower.plot(coverage, curve.scanned, color=COLOURS[2])
        lower.set_ylim(bottom=0)
        for axes in (upper, lower):
            axes.set_facecolor("none")
            axes.axvline(curve.stored, color=COLOURS[4], linestyle=":", label="stored")
        upper.set(ylabel="precision")
        upper.legend(loc="lower left", ncols=len(curve.precision) + 1)
        lower.xaxis.set_major_formatter(PercentFormatter(1.0))
        lower.set(xlabel="coverage: contexts that the screen answers itself", ylabel="rows of W")
        return _svg(upper)


def histogram(values: Sequence[float], xlabel: str, ylabel: str) -> str:
    """The number of values of each size."""
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        axes = _axes(3.1, 2.4)
        axes.hist(values, bins=min(30, len(set(values))), color=COLOURS[0])
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(xlabel=xlabel, ylabel=ylabel)
        return _svg(axes)


def ranked(values: Sequence[float], xlabel: str, ylabel: str) -> str:
    """Values from the largest to the smallest."""
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        axes = _axes(3.1, 2.4)
        axes.fill_between(
            range(len(values)), sorted(values, reverse=True), step="mid", color=COLOURS[0]
        )
        axes.set_ylim(bottom=0)
        axes.set(xlabel=xlabel, ylabel=ylabel)
        return _svg(axes)


def blocks(shares: Sequence[float], ylabel: str) -> str:
    """One share for each contiguous block of the contexts."""
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        axes = _axes(7.5, 2.6)
        axes.plot(range(1, len(shares) + 1), shares, color=COLOURS[0], marker="o")
        axes.axhline(sum(shares) / len(shares), color=COLOURS[1], linestyle="--", label="mean")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.margins(y=0.3)
        axes.set(xlabel="block of the contexts", ylabel=ylabel)
        axes.legend()
        return _svg(axes)


def bars(names: Sequence[str], values: Sequence[float], xlabel: str) -> str:
    """One horizontal bar a name, the first on top."""
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        axes = _axes(7.5, 0.7 + 0.35 * len(names))
        axes.barh(range(len(names)), values, color=COLOURS[0])
        axes.set_yticks(range(len(names)), [_plain(name) for name in names])
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set(xlabel=xlabel)
        return _svg(axes)


def _axes(width: float, height: float) -> Axes:
    axes = Figure(figsize=(width, height), layout="constrained").add_subplot()
    axes.set_facecolor("none")
    return axes


def _svg(axes: Axes) -> str:
    figure = axes.get_figure(root=True)
    assert figure is not None
    text = StringIO()
    nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(text, format="svg", transparent=True, metadata=nothing)
    markup = text.getvalue()
    return markup[markup.index("<svg") :].replace(INK, "currentColor")
