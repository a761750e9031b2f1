"""The screen against the exact softmax of numpy, torch and faiss. `make bench`.

On a real LSTM's contexts (lm-docs), one thread, everything in one run. A screen is fitted on
contexts of the text that the model was trained on; its target precision is met on the first half of
H_test, unseen text, and precision is judged on the second half.
"""

from typing import Any

import numpy as np

from benchmarks import raw
from benchmarks.machine import describe
from benchmarks.race.datasets import DATASETS, load
from benchmarks.race.methods import hold_threads
from benchmarks.race.peers.exact import MAKERS, ExactPeer
from benchmarks.tables.races import screen as table
from benchmarks.timing import Search, race
from logitsieve.evaluation import evaluate
from logitsieve.index import Index

TARGET = {"p1": 0.998, "p5": 0.990}
K = 5
BATCHES = (1, 8, 64)


def main() -> None:
    parser = raw.parser(__doc__, "screen.json.gz")
    parser.add_argument("--data", choices=DATASETS, default="lm-docs", help="dataset of the race")
    options = parser.parse_args()
    hold_threads(1)
    data = load(options.data)
    with data.built(target_precision=TARGET) as index:
        results = measure(index, data.test)
    raw.write(options.out, results)
    print({name: value for name, value in results.items() if name != "us_per_row"})
    print(table(results["us_per_row"]))


def measure(index: Index, unseen: np.ndarray) -> dict[str, Any]:
    """Precision on all unseen contexts, and us/row of everything at each batch size."""
    blocks = (unseen[i : i + 256] for i in range(0, len(unseen), 256))
    found = evaluate(index.head("screen"), index.head("full"), blocks, (1, 5))
    contenders: dict[str, Search] = {
        name: ExactPeer(name, index.softmax).topk for name in MAKERS
    } | {f"logitsieve {name}": index.head(name).topk for name in ("full", "screen")}
    contenders["logitsieve sketch 0"] = index.head("sketch", max_error=0.0).topk
    return {
        "machine": describe(),
        "vocab_size": index.vocab_size,
        "dim": index.dim,
        "k": K,
        "threads": 1,
        "screen": dict(index.manifest.heads["screen"].config),
        "contexts": len(unseen),
        "p1": found.precision[1].mean,
        "p1_low": found.precision[1].low,
        "p5": found.precision[5].mean,
        "p5_low": found.precision[5].low,
        "candidates": found.scanned[5],
        "us_per_row": {str(batch): race(contenders, unseen, batch, K) for batch in BATCHES},
    }


if __name__ == "__main__":
    main()
