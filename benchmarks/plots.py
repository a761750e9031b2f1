"""The picture of the raw results of `benchmarks.screen`. `python -m benchmarks.plots`."""

from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot

from benchmarks import raw

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
    """Draw the picture of docs/benchmarks.md."""
    mpl.use("svg")
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        draw_screen(raw.read(raw.RESULTS / "screen.json.gz"))
        pyplot.savefig(IMAGES / "screen.svg", metadata={"Date": None}, bbox_inches="tight")
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
            xlabel="µs per row",
            title="1 row per call" if batch == "1" else f"{batch} rows per call",
        )
        axes.set_xlim(0, max(values) * 1.2)
    figure.suptitle(
        f"Top 5 of {results['vocab_size']:,} words, D = {results['dim']}, one thread; the screen "
        f"finds {results['p1']:.2%} of the best words, {results['p5']:.2%} of the best five",
        fontsize=10,
    )
    figure.tight_layout()


if __name__ == "__main__":
    main()
