"""Pictures of lazy-gumbel.json: `python -m benchmarks.decoding.plots`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot

from benchmarks.plots import STYLE

RESULTS = Path(__file__).parents[1] / "results" / "decoding"
COLOURS = ("#0b6e4f", "#2ca58d", "#1f77b4", "#6a4c93", "#c2185b", "#e07b00")
TITLES = {"real": "real contexts", "equal": "equal logits"}


def main() -> None:
    """Draw again."""
    draw(json.loads((RESULTS / "lazy-gumbel.json").read_text(encoding="utf-8")), RESULTS)


def draw(results: dict[str, Any], out: Path) -> None:
    """lazy-gumbel.svg and sampled.svg."""
    mpl.use("svg")
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        for name, picture in (("lazy-gumbel", draw_failures), ("sampled", draw_partition)):
            picture(results)
            pyplot.savefig(out / f"{name}.svg", metadata={"Date": None}, bbox_inches="tight")
            pyplot.close()


def draw_failures(results: dict[str, Any]) -> None:
    """Shares of draws against k l / C, one line a k, the bound among them."""
    figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.8), sharey=True)
    size, least = results["vocab_size"], 0.5 / (results["rows"] * results["draws"])
    for axes, (name, found) in zip(panels, results["failures"].items(), strict=True):
        for k, colour in zip(ks(found["grid"]), COLOURS, strict=True):
            own = [record for record in found["grid"] if record["k"] == k]
            product = [k * record["l"] / size for record in own]
            for share, style in (("unproven", "o-"), ("different", "s--")):
                shown = [(x, r[share]) for x, r in zip(product, own, strict=True) if r[share] > 0]
                label = f"k = {k:,}" if share == "unproven" else None
                axes.plot(*zip(*shown, strict=True), style, color=colour, markersize=4, label=label)
        points = [10 ** (place / 20) for place in range(-60, 41)]
        bound = [2.718281828**-x for x in points]
        axes.plot(points, bound, color="#333333", linewidth=1, label="e^(-k l / C)")
        axes.set(xscale="log", yscale="log", xlabel="k l / C", title=TITLES[name])
        axes.set_ylim(least, 1.5)
        axes.grid(color="#eeeeee")
    panels[0].set_ylabel("share of draws")
    panels[1].legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
    figure.suptitle("A threshold fixed by l: not proven (solid), different (dashed)", fontsize=10)


def draw_partition(results: dict[str, Any]) -> None:
    """Errors against l, one line a k; dashed what the estimate reports."""
    _, axes = pyplot.subplots(figsize=(6, 3.8))
    for k, colour in zip(ks(results["partition"]), COLOURS, strict=True):
        own = [record for record in results["partition"] if record["k"] == k]
        samples = [record["l"] for record in own]
        errors, reported = ([r[key] for r in own] for key in ("rms_error", "reported"))
        axes.plot(samples, errors, "o-", color=colour, markersize=4, label=f"k = {k:,}")
        axes.plot(samples, reported, "--", color=colour)
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="ids sampled, l",
        ylabel="root mean square error of log Z",
    )
    axes.grid(color="#eeeeee")
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))


def ks(records: list[dict[str, Any]]) -> list[int]:
    """In their order."""
    return list(dict.fromkeys(record["k"] for record in records))


if __name__ == "__main__":
    main()
