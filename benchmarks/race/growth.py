"""Time per row against the size of the vocabulary: `python -m benchmarks.race.growth`.

Synthetic softmaxes of one kind, V = 10,000 to 1,000,000 (D = 200), one row a call, one thread; the
best exact float32, and of each head the fastest setting with P@1 >= 0.98; `lsh` up to 100,000
words, beyond which it takes as long as `exact`. Writes growth.json.gz and growth.svg; vocabularies
that are in growth.json.gz already are kept.
"""

from __future__ import annotations

import argparse
import math
from argparse import Namespace
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot

from benchmarks import raw
from benchmarks.plots import STYLE
from benchmarks.race.bars import bars
from benchmarks.race.datasets import GROWTH, load
from benchmarks.race.methods import hold_threads
from benchmarks.race.prepare import CACHE, SHARED
from benchmarks.race.run import OUT, race
from benchmarks.race.table import ASKED, baseline, chosen, methods, setting

HEADS = ("exact", "certified", "screen")
LSH_WORDS = 100_000  # at most
BEST_EXACT = "best exact float32"
MODE = "B=1 threads=1"
COLOURS = {
    BEST_EXACT: "#7f8c8d",
    "logitsieve exact": "#a9cbb7",
    "logitsieve certified": "#1f77b4",
    "logitsieve screen": "#0b6e4f",
    "logitsieve lsh": "#c2185b",
}


def main() -> None:
    """Measure what is missing, then draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--words", type=int, nargs="*", default=GROWTH, choices=GROWTH)
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the results")
    parser.add_argument("--cache", type=Path, default=CACHE, help="indexes")
    parser.add_argument("--again", action="store_true", help="measure what is there already too")
    options = parser.parse_args()
    hold_threads(1)
    path = options.out / "growth.json.gz"
    sizes = raw.read(path) if path.exists() else {}
    for words in options.words:
        if str(words) in sizes and not options.again:
            continue
        sizes[str(words)] = measure(words, options.cache)
        raw.write(path, sizes)
    draw(sizes, options.out)


def measure(words: int, cache: Path) -> dict[str, Any]:
    """The race of the heads alone on one vocabulary."""
    heads = HEADS + ("lsh",) * (words <= LSH_WORDS)
    options = Namespace(
        batch=64,
        threads=1,
        cache=cache,
        only=",".join(f"logitsieve {name}" for name in heads),
        judged=1000,
        cold=False,
        rebuild=False,
    )
    data = load(f"synthetic-{words}", SHARED, cache)
    print(data.beside)
    with bars() as progress:
        return race(data, options, progress)


Line = list[tuple[int, float]]  # (V, microseconds a row)


def series(sizes: dict[str, dict[str, Any]]) -> dict[str, dict[str, Line]]:
    """Lines by method, where it is precise enough, and machine (told apart by its caches)."""
    found: dict[str, dict[str, Line]] = {}
    for words, results in sorted((int(words), results) for words, results in sizes.items()):
        machine = str(results["machine"]["caches"])

        def add(name: str, us: float, words: int = words, machine: str = machine) -> None:
            found.setdefault(name, {}).setdefault(machine, []).append((words, us))

        add(BEST_EXACT, baseline(results, MODE)[1])
        for name in methods(results):
            best = chosen(results, name)[0]
            if name.startswith("logitsieve") and best["p1"] >= ASKED:
                us = best["us_per_row"][MODE]["median"]
                add(name, us)
                print(f"V={words:>9,} {name:22} {us:10.2f} µs P@1 {best['p1']:.4f} {setting(best)}")
    return found


def power(line: Line) -> str:
    """The exponent of V from the first point to the last."""
    words, times = zip(*line, strict=True)
    return f"V^{math.log(times[-1] / times[0]) / math.log(words[-1] / words[0]):.2f}"


def draw(sizes: dict[str, dict[str, Any]], out: Path) -> None:
    """Lines on two log scales, dashed on a second machine; the exponents of V beside each name."""
    mpl.use("svg")
    with mpl.rc_context(STYLE):  # type: ignore[arg-type]
        figure, axes = pyplot.subplots(figsize=(8, 4.6))
        for name, machines in series(sizes).items():
            powers = ", ".join(power(line) for line in machines.values() if len(line) > 1)
            for number, line in enumerate(machines.values()):
                axes.plot(
                    *zip(*line, strict=True),
                    "s--" if number else "o-",
                    color=COLOURS.get(name),
                    label=None if number else f"{name}: {powers}",
                    markersize=5,
                )
        dim = next(iter(sizes.values()))["dim"]
        axes.set(
            xscale="log",
            yscale="log",
            xlabel="vocabulary, V (in the legend: how the time grows with V on each machine)",
            ylabel="µs per row",
            title=f"One row per call, one thread, D = {dim}, fastest setting with P@1 >= {ASKED}; "
            "dashed: second machine",
        )
        axes.set_xticks(sorted(map(int, sizes)), [f"{int(v):,}" for v in sorted(sizes, key=int)])
        axes.minorticks_off()
        axes.yaxis.set_major_formatter("{x:,g}")
        axes.grid(color="#eeeeee")
        axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))
        figure.savefig(out / "growth.svg", metadata={"Date": None}, bbox_inches="tight")
        pyplot.close(figure)


if __name__ == "__main__":
    main()
