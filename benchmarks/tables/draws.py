"""Tables that compare draws with draws from all logits, and ways to translate by beams."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from benchmarks.raw import load
from benchmarks.tables.figures import ABSENT, digits, markdown
from demo.published import MODELS
from logitsieve.api.keywords import ModelSpec

PROOF: ModelSpec = {"head": "sketch", "max_error": 0.0}
HEADS: Mapping[str, ModelSpec] = {
    "full": {"head": "full"},
    "sketch 0": PROOF,
    "sketch 0.001": {"head": "sketch", "max_error": 1e-3},
}
SCORED = "sketch 0, log-probabilities"


def draws(found: dict[str, Any]) -> str:
    rows = []
    for name, one in found.items():
        if name not in MODELS:
            continue
        shape = f"{name}: V = {one['vocab_size']:,}, D = {one['dim']:,}"
        for asked, times in one["us_per_row"].items():
            us = {who: time["median"] for who, time in times.items()}
            dense = {who: time for who, time in us.items() if who not in (*HEADS, SCORED)}
            best = min(dense, key=lambda who: dense[who])
            ours = us.get("sketch 0", us[SCORED])
            scanned = one["scanned"][asked]
            rows.append(
                [
                    shape,
                    asked,
                    *(digits(us[head]) if head in us else ABSENT for head in (*HEADS, SCORED)),
                    f"{digits(dense[best])} ({best})",
                    f"{digits(dense[best] / ours, 2)}x",
                    f"{scanned['rows']:,.0f}",
                    f"{scanned['all']:.0%}",
                ]
            )
    head = ["", "asked", *(f"`{head}`" for head in HEADS), "`sketch 0` with log-probabilities"]
    head += ["best dense", "times as fast as `sketch 0`", "rows of W", "rows that took all of W"]
    return markdown(head, rows, 1)


def default_draws(found: dict[str, Any]) -> str:
    """Mean microseconds at temperature 1, times those of `full`, and the errors of log p."""
    rows = []
    for name, one in found.items():
        shape = f"{name}: V = {one['vocab_size']:,}, D = {one['dim']:,}"
        for asked, ways in one["asked"].items():
            draw, _, temperature = asked.partition(", T = ")
            if temperature != "1":
                continue
            row = [shape, draw]
            for way in ("plain", "scored"):
                full, sketch = (np.array(ways[way]["us"][head]) for head in ("full", "sketch"))
                means = f"{digits(float(full.mean()))} / {digits(float(sketch.mean()))}"
                row.append(f"{means}, {full.mean() / sketch.mean():.2f}x")
            rows.append([*row, f"{np.max(ways['scored']['off']):.4f}"])
    head = ["", "draw", "µs: `full` / `sketch`", "with log-probabilities"]
    return markdown([*head, "largest error of log p"], rows, 1)


def translations(found: dict[str, Any]) -> str:
    """Compare each way with `full` and with the fastest other library of the same run."""
    rows = []
    for beams, ways in found.get("searches", {}).items():
        us = {way: figures["us_per_row"] for way, figures in ways.items()}
        ours = next(place for place, way in enumerate(ways) if way == "full")
        best = min([*us.values()][:ours])
        for way, figures in ways.items():
            over = [f"{digits(each / us[way], 2)}x" for each in (us["full"], best)]
            same = f"{figures['same_as_exact']:.1%}"
            rows.append([beams, way, digits(us[way]), *over, f"{figures['bleu']:.2f}", same])
    head = ["", "softmax", "µs a row", "over `full`", "over the best library", "BLEU"]
    return markdown([*head, "translations as by `full`"], rows, 1)


def best_beams(found: dict[str, Any]) -> str:
    """The same at the most beams: ours, the exact softmax and the fastest other library."""
    beams, ways = [*found["searches"].items()][-1]
    ours = [*ways].index("full")
    peer = min([*ways][:ours], key=lambda way: ways[way]["us_per_row"])
    rows = [
        [way, digits(ways[way]["us_per_row"]), f"{ways[way]['same_as_exact']:.1%}"]
        for way in (peer, *[*ways][ours:])
    ]
    return markdown([f"{beams}: softmax", "µs a row", "translations as by `full`"], rows)


TABLES: dict[str, Callable[[], str]] = {
    "translate": lambda: translations(load("translate")),
    "translate, beams": lambda: best_beams(load("translate")),
    "draws": lambda: draws(load("draws")),
    "default-draws": lambda: default_draws(load("default_draws")),
}
