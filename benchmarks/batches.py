"""Time of one call of B rows, for B from 1 to 64: no batch should cost more than its rows alone.

    python -m benchmarks.batches MODELS/lm/1 MODELS/nmt/1

Each head and grade of each index answers the top 5 of contexts that the build held out, on one
thread; all take turns. Prints the table, and draws batches.svg beside the raw results.
"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import raw
from benchmarks.machine import describe
from benchmarks.plots import draw_batches
from benchmarks.race.methods import hold_threads
from benchmarks.tables import races
from benchmarks.timing import race
from logitsieve.api.results import Float32
from logitsieve.cli.output import bars
from logitsieve.console.answers import kept_contexts
from logitsieve.decoding import LocalDecoder
from logitsieve.index import Index, open_index

SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 32, 48, 64)
K = 5


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
                    "us_per_row": measure(index, kept_contexts(index), progress),
                }
    results = {"machine": describe(), "k": K, "indexes": found}
    raw.write(options.out, results)
    draw_batches(results, options.out.with_suffix("").with_suffix(".svg"))
    print(races.batches(results))


def measure(index: Index, hidden_states: Float32, progress: Any) -> dict[str, dict[str, float]]:
    """Microseconds a row, by head and B: the median over rounds of a turn's mean."""
    decoder = LocalDecoder(index)
    specs: dict[str, Any] = {
        name: {"head": name} for name in index.heads if name not in ("sketch", "frequency")
    }
    specs |= {
        label: {"head": "sketch", "max_error": grade}
        for label, grade in raw.grades_of(index).items()
    }
    contenders = {name: partial(decoder.topk, **spec) for name, spec in specs.items()}
    hidden_states = np.resize(hidden_states, (max(len(hidden_states), SIZES[-1]), index.dim))
    found: dict[str, dict[str, float]] = {name: {} for name in specs}
    for number, size in enumerate(SIZES, start=1):
        for name, us in race(contenders, hidden_states, size, K).items():
            found[name][str(size)] = us["median"]
        progress("batches", number, len(SIZES))
    return found


if __name__ == "__main__":
    main()
