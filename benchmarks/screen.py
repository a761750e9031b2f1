"""The screen against the exact softmax of numpy, torch and faiss. `make bench`.

On a real LSTM's contexts (lm-docs), one thread, everything in one run. A screen is fitted on
contexts of the text that the model was trained on; its target precision is met on the first half of
H_test, unseen text, and precision is judged on the second half.
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks import raw
from benchmarks.machine import describe
from benchmarks.race.datasets import DATASETS, load
from benchmarks.race.methods import hold_threads
from benchmarks.race.peers.exact import MAKERS, ExactPeer
from benchmarks.tables.races import screen as table
from benchmarks.timing import CLEARED_BYTES, Search, race
from logitsieve.evaluation import evaluate
from logitsieve.index import Index

OUT = raw.RESULTS / "screen.json.gz"
TARGET = {"p1": 0.998, "p5": 0.990}
K = 5
BATCHES = (1, 8, 64)


def main() -> None:
    """Build, measure, write the raw numbers, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", choices=DATASETS, default="lm-docs", help="dataset of the race")
    parser.add_argument("--cold", action="store_true", help="time calls after other work too")
    parser.add_argument("--out", type=Path, default=OUT, help="raw results, JSON")
    options = parser.parse_args()
    hold_threads(1)
    data = load(options.data)
    with TemporaryDirectory() as scratch:
        index = data.build(Path(scratch) / data.name / "1", target_precision=TARGET)
        results = measure(index, data.test, options.cold)
    raw.write(options.out, results)
    about = ("vocab_size", "dim", "p1", "p5", "candidates", "contexts", "machine")
    print({name: results[name] for name in about})
    for field in ("us_per_row", "cold_us_per_row")[: 1 + options.cold]:
        print(f"\n{field}\n{table(results[field])}")


def measure(index: Index, unseen: np.ndarray, cold: bool) -> dict[str, Any]:
    """Precision on all unseen contexts, and us/row of everything at each batch size."""
    blocks = (unseen[i : i + 256] for i in range(0, len(unseen), 256))
    found = evaluate(index.head("screen"), index.head("exact"), blocks, (1, 5))
    contenders: dict[str, Search] = {
        name: ExactPeer(name, index.softmax).topk for name in MAKERS
    } | {f"logitsieve {name}": index.head(name).topk for name in ("exact", "certified", "screen")}

    def times(cold: bool) -> dict[str, dict[str, dict[str, float]]]:
        return {str(batch): race(contenders, unseen, batch, K, cold=cold) for batch in BATCHES}

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
        "us_per_row": times(cold=False),
        "cleared_bytes": CLEARED_BYTES if cold else 0,
        "cold_us_per_row": times(cold=True) if cold else {},
    }


if __name__ == "__main__":
    main()
