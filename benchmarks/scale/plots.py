"""The pictures of docs/scale.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib import pyplot

from benchmarks.plots import STYLE
from benchmarks.scale.model import costs_of
from benchmarks.scale.sizes import REPLICATED

SHARDS = (1, 4, 16, 64, 100)
WORDS = np.geomspace(1e4, 1e9, 60)
GREENS = ("#0b6e4f", "#3f8f73", "#1f77b4", "#7f6fb0", "#c2185b")


def draw(results: dict[str, Any], folder: Path) -> None:
    """Write a picture for each part that was measured."""
    mpl.use("svg")
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        for make, needed in PICTURES.items():
            if needed in results:
                make(results)
                path = folder / f"{make.__name__}.svg"
                pyplot.savefig(path, metadata={"Date": None}, bbox_inches="tight")
                pyplot.close()


def latency(results: dict[str, Any]) -> None:
    """A call by V and S: the model's lines, and what was measured over one shard."""
    costs = costs_of(results)
    figure, axes = pyplot.subplots(figsize=(7.5, 4))
    for shards, colour in zip(SHARDS, GREENS, strict=True):
        times = [costs.latency(words, shards) / 1000 for words in WORDS]
        axes.plot(WORDS, times, color=colour, label=f"{shards} shard{'s' * (shards > 1)}")
    for words, found in results["called"].items():
        axes.plot(int(words), found["1"][REPLICATED]["p50"] / 1000, "o", color=GREENS[0])
    whole = {int(words): found["certified"]["median"] for words, found in results["times"].items()}
    axes.plot(
        list(whole),
        [us / 1000 for us in whole.values()],
        "s--",
        color="#7f8c8d",
        label="in process",
    )
    axes.set(xscale="log", yscale="log", xlabel="rows of W", ylabel="ms of a call of one row")
    axes.grid(color="#eeeeee")
    axes.legend(frameon=False)
    figure.tight_layout()


def tail(results: dict[str, Any]) -> None:
    """Percentiles of simulated calls by the number of shards."""
    found = results["simulated"]["tail"]
    figure, panels = pyplot.subplots(1, 2, figsize=(9, 3.6), sharey=True)
    for axes, replicas in zip(panels, (1, 2), strict=True):
        own = [one for one in found if one["replicas"] == replicas]
        for name, colour in zip(("p50", "p99", "p99.9"), GREENS[::2], strict=True):
            shards = [one["shards"] for one in own]
            axes.plot(shards, [1000 * one[name] for one in own], "o-", color=colour, label=name)
        axes.set(
            xscale="log", yscale="log", xlabel="shards",
            title=f"{replicas} replica{'s' * (replicas > 1)} of each shard",
        )  # fmt: skip
        axes.grid(color="#eeeeee")
    panels[0].set_ylabel("ms of a call (simulated)")
    panels[0].legend(frameon=False)
    figure.tight_layout()


def node(results: dict[str, Any]) -> None:
    """Latencies and whole answers around the loss of a node."""
    found, lost_s = results["simulated"]["lost"], results["simulated"]["lost_s"]
    figure, panels = pyplot.subplots(2, 2, figsize=(9, 4.6), sharex=True, sharey="row")
    for column, replicas in enumerate(("1", "2")):
        seconds = [one["second"] for one in found[replicas]]
        times, shares = panels[0, column], panels[1, column]
        for name, colour in zip(("p50", "p99"), GREENS[::2], strict=False):
            values = [1000 * one[name] for one in found[replicas]]
            times.plot(seconds, values, color=colour, label=name)
        shares.plot(seconds, [100 * one["whole"] for one in found[replicas]], color=GREENS[0])
        times.set(yscale="log", title=f"{replicas} replica{'s' * (replicas != '1')} of each shard")
        shares.set(xlabel="seconds", ylim=(-5, 105))
        for axes in (times, shares):
            axes.axvspan(*lost_s, color="#f3e3e3")
            axes.grid(color="#eeeeee")
    panels[0, 0].set_ylabel("ms of a call")
    panels[0, 0].legend(frameon=False)
    panels[1, 0].set_ylabel("% answered by all shards")
    figure.tight_layout()


PICTURES: dict[Callable[[dict[str, Any]], None], str] = {  # and the part that each shows
    latency: "called",
    tail: "simulated",
    node: "simulated",
}
