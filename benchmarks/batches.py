"""Time of one call of B rows, for B from 1 to 64: no batch should cost more than its rows alone.

    python -m benchmarks.batches MODELS/lm/1 MODELS/nmt/1

Each head and grade of each index answers the top 5 of contexts that the build held out, on one
thread; all take turns. Prints the largest cliffs, and draws batches.svg beside the raw results.
"""

import statistics
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np

from benchmarks import raw
from benchmarks.machine import describe
from benchmarks.plots import MARKS, OURS, picture
from benchmarks.race.methods import hold_threads
from benchmarks.timing import batches_of
from logitsieve.api.results import Float32
from logitsieve.cli.output import bars
from logitsieve.console.questions import kept_contexts
from logitsieve.decoding import LocalDecoder
from logitsieve.index import Index, open_index

SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64)
K = 5
ROUNDS, TURN_NS = 7, 20_000_000


def main() -> None:
    parser = raw.parser(__doc__, "batches.json.gz")
    parser.add_argument("indexes", nargs="+", type=Path, metavar="NAME/VERSION")
    options = parser.parse_args()
    hold_threads(1)
    found: dict[str, Any] = {}
    with bars() as progress:
        for path in options.indexes:
            with open_index(path) as index:
                found[path.parent.name] = {
                    "shape": [index.vocab_size, index.dim, index.manifest.dtype],
                    "us": measure(index, kept_contexts(index), progress),
                }
    results = {"machine": describe(), "k": K, "indexes": found}
    raw.write(options.out, results)
    draw(results, options.out.with_suffix("").with_suffix(".svg"))
    for name, about in found.items():
        for head, times in about["us"].items():
            worst = max(times, key=lambda size: times[size] / int(size))
            ratio = times[worst] / int(worst) / times["1"]
            alone = f"{name}, {head}: {times['1']:.0f} us a row alone"
            print(f"{alone}, at worst {ratio:.2f}x (B = {worst})")


def measure(index: Index, hidden: Float32, progress: Any) -> dict[str, dict[str, float]]:
    """Microseconds a call, by head and B: the median over rounds of a turn's mean."""
    decoder = LocalDecoder(index)
    targets: dict[str, Any] = {
        name: {"head": name} for name in index.heads if name not in ("sketch", "frequency")
    }
    targets |= {
        label: {"head": "sketch", "max_error": grade}
        for label, grade in raw.grades_of(index).items()
    }
    hidden = np.resize(hidden, (max(len(hidden), SIZES[-1]), index.dim))
    batches = {size: batches_of(hidden, size) for size in SIZES}
    times: dict[str, dict[int, list[float]]] = {
        name: {size: [] for size in SIZES} for name in targets
    }
    for number in range(ROUNDS * len(SIZES)):
        size = SIZES[number % len(SIZES)]
        for name, target in targets.items():
            times[name][size].append(_turn(decoder, target, batches[size], number))
        progress("batches", number + 1, ROUNDS * len(SIZES))
    return {
        name: {str(size): statistics.median(each) for size, each in of.items()}
        for name, of in times.items()
    }


def _turn(decoder: LocalDecoder, target: Any, batches: list[Float32], number: int) -> float:
    decoder.topk(batches[number % len(batches)], K, **target)
    done, start = 0, perf_counter_ns()
    while (elapsed := perf_counter_ns() - start) < TURN_NS or not done:
        decoder.topk(batches[(number + done) % len(batches)], K, **target)
        done += 1
    return elapsed / done / 1000


def draw(results: dict[str, Any], path: Path) -> None:
    """One panel an index: microseconds a row by B, both on log scales."""
    indexes = results["indexes"]
    with picture(path, len(indexes), (1 + 3.4 * len(indexes), 3.2)) as (figure, panels):
        for axes, (name, about) in zip(np.atleast_1d(panels), indexes.items(), strict=True):
            for place, (head, times) in enumerate(about["us"].items()):
                sizes = [int(size) for size in times]
                rows = [us / size for size, us in zip(sizes, times.values(), strict=True)]
                axes.plot(sizes, rows, marker=MARKS[place], color=OURS[place], label=head)
            axes.set(xscale="log", yscale="log", title=name, xlabel="rows a call")
            axes.set_xticks(SIZES[::2], SIZES[::2], fontsize=7, minor=False)
            axes.minorticks_off()
        handles, labels = np.atleast_1d(panels)[-1].get_legend_handles_labels()
        figure.legend(handles, labels, loc="center left", bbox_to_anchor=(0.99, 0.5), frameon=False)
        np.atleast_1d(panels)[0].set_ylabel("µs a row")


if __name__ == "__main__":
    main()
