"""Pictures of the raw results for README and docs. `python -m benchmarks.plots`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot

RESULTS = Path(__file__).parent / "results"
IMAGES = Path(__file__).parents[1] / "docs" / "images"
COLOURS = {"logitsieve screen": "#1b7f5c", "logitsieve exact": "#6fb79c"}
STYLE = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "logitsieve",
    "figure.facecolor": "white",
}


def main() -> None:
    """Draw every picture whose results are there."""
    IMAGES.mkdir(parents=True, exist_ok=True)
    mpl.use("svg")
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        for name, draw in (("screen", draw_screen), ("clusters", draw_clusters)):
            source = RESULTS / f"{name}.json"
            if not source.exists():
                print(f"{source} is absent: no picture of it")
                continue
            draw(json.loads(source.read_text(encoding="utf-8")))
            pyplot.savefig(IMAGES / f"{name}.svg", metadata={"Date": None}, bbox_inches="tight")
            pyplot.close()


def draw_screen(results: dict[str, Any]) -> None:
    """us/row of each way to the top 5, one panel a batch size."""
    batches = ("1", "64")
    figure, panels = pyplot.subplots(1, len(batches), figsize=(9, 2.9), sharey=True)
    for axes, batch in zip(panels, batches, strict=True):
        times = results["us_per_row"][batch]
        names = sorted(times, key=lambda name: -times[name]["median"])
        values = [times[name]["median"] for name in names]
        bars = axes.barh(names, values, color=[COLOURS.get(name, "#b9bec4") for name in names])
        axes.bar_label(bars, [f"{value:.3g}" for value in values], padding=3)
        axes.set(
            xlabel="µs a row", title="1 row a call" if batch == "1" else f"{batch} rows a call"
        )
        axes.set_xlim(0, max(values) * 1.2)
    figure.suptitle(
        f"Top 5 of {results['vocab_size']:,} words, D = {results['dim']}, one thread; the screen "
        f"finds {results['p1']:.2%} of the best words, {results['p5']:.2%} of the best five",
        fontsize=10,
    )
    figure.tight_layout()


def draw_clusters(results: dict[str, Any]) -> None:
    """P@5 of trained and plain clusters at equal measured time, a dot a seed."""
    _, axes = pyplot.subplots(figsize=(6, 3))
    for kind, colour, offset in (("plain", "#b9bec4", -0.08), ("trained", "#1b7f5c", 0.08)):
        counts = sorted({entry["clusters"] for entry in results["records"]})
        for place, clusters in enumerate(counts):
            own = [e[kind]["p5"] for e in results["records"] if e["clusters"] == clusters]
            label = kind if place == 0 else None
            axes.plot([place + offset] * len(own), own, "o", color=colour, label=label)
        axes.set_xticks(range(len(counts)), map(str, counts))
    axes.set(
        xlabel="clusters",
        ylabel="P@5",
        title=f"every screen takes {results['time_us']:.2f} µs a row",
    )
    axes.legend()


if __name__ == "__main__":
    main()
