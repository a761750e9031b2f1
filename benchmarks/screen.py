"""The screen against the exact softmax of numpy, torch and faiss. `make bench`.

On a real LSTM's contexts (lm-docs-10k-200), one thread, everything in one run. A screen is fitted
on H_train, contexts of the text that the model was trained on; its target precision is met on the
first half of H_test, unseen text, and precision is judged on the second half. --index and
--contexts measure any other index, for example the one that `make demo` left.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks import raw
from benchmarks.baselines import baselines, single_thread, torch_exact
from benchmarks.machine import describe
from benchmarks.timing import CLEARED_BYTES, Search, batches_of, race
from logitsieve.evaluation import evaluate
from logitsieve.index import Index, open_index
from logitsieve.index_builder import build
from logitsieve.index_builder.data.arrays import load_array

DATA = Path(__file__).parents[2] / "shared" / "data" / "lm-docs-10k-200.npz"
OUT = raw.RESULTS / "screen.json.gz"
TARGET = {"p1": 0.998, "p5": 0.990}
K = 5
BATCHES = (1, 8, 64)


def main() -> None:
    """Build, measure, write the raw numbers, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA, help="lm-docs-10k-200.npz")
    parser.add_argument("--index", type=Path, help="measure this index instead of building one")
    parser.add_argument("--contexts", type=Path, help="unseen contexts of --index, .npy [N, D]")
    parser.add_argument("--cold", action="store_true", help="time calls after other work too")
    parser.add_argument("--out", type=Path, default=OUT, help="raw results, JSON")
    options = parser.parse_args()
    if options.index and not options.contexts:
        parser.error("--index needs --contexts")
    single_thread()
    with tempfile.TemporaryDirectory() as scratch:
        if options.index:
            index = open_index(options.index)
            unseen = np.load(options.contexts).astype(np.float32)
        elif options.data.exists():
            unseen = np.asarray(load_array(f"{options.data}:H_test"), np.float32)
            half = len(unseen) // 2
            index = build_index(options.data, unseen[:half], Path(scratch))
            unseen = unseen[half:]
        else:
            print(f"{options.data} is absent: pass --index and --contexts")
            return
        results = measure(index, unseen, options.cold)
    raw.write(options.out, results)
    show(results)


def build_index(data: Path, heldout: np.ndarray, scratch: Path) -> Index:
    """A screen for the target precision, by the builder's own search."""
    return build(
        f"{data}:W",
        f"{data}:b",
        f"{data}:H_train",
        scratch / "lm-docs" / "1",
        target_precision=TARGET,
        heldout=heldout,
        progress=lambda stage, done, total: print(f"\r{stage} {done}/{total}   ", end=""),
    )


def measure(index: Index, unseen: np.ndarray, cold: bool) -> dict[str, Any]:
    """Precision on all unseen contexts, and us/row of everything at each batch size."""
    screen, exact = index.head("screen"), index.head("exact")
    blocks = (unseen[i : i + 256] for i in range(0, len(unseen), 256))
    found = evaluate(screen, exact, blocks, (1, 5))
    contenders: dict[str, Search] = baselines(index.softmax)
    contenders["torch bfloat16"] = torch_exact(index.softmax, torch.bfloat16)
    contenders["logitsieve exact"] = exact.topk
    if "certified" in index.manifest.heads:
        contenders["logitsieve certified"] = index.head("certified").topk
    contenders["logitsieve screen"] = screen.topk

    def times(cold: bool) -> dict[str, dict[str, dict[str, float]]]:
        return {
            str(batch): race(contenders, batches_of(unseen, batch), K, cold=cold)
            for batch in BATCHES
        }

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


def show(results: dict[str, Any]) -> None:
    """Markdown tables: us/row and how many times faster the screen is, and the same cold."""
    about, screen = results["machine"], results["screen"]
    print(
        f"\n{about['cpu']}, 1 thread, V={results['vocab_size']:,} D={results['dim']} k={K}, "
        f"one core reads {about['read_GBps']['L3']:.0f} GB/s from L3"
        f"\nscreen: C={screen['clusters']}, {results['candidates']:.1f} candidates a row, "
        f"P@1 {results['p1']:.4f} P@5 {results['p5']:.4f} "
        f"on {results['contexts']:,} unseen contexts\n"
    )
    _show_times(results["us_per_row"])
    if results["cleared_bytes"]:
        print(f"\ncold: {results['cleared_bytes'] / 1e6:.0f} MB pass the cache before a call\n")
        _show_times(results["cold_us_per_row"])


def _show_times(times: dict[str, dict[str, dict[str, float]]]) -> None:
    print("| us/row (speed-up of the screen) | " + " | ".join(f"B={b}" for b in BATCHES) + " |")
    print("|---" * (len(BATCHES) + 1) + "|")
    for name in times["1"]:
        cells = []
        for batch in map(str, BATCHES):
            us = times[batch][name]["median"]
            ratio = us / times[batch]["logitsieve screen"]["median"]
            cells.append(f"{us:.2f} ({ratio:.1f}x)")
        print(f"| {name} | " + " | ".join(cells) + " |")
    float32 = ("numpy", "torch", "faiss IndexFlatIP")
    best = min(times["1"][name]["median"] for name in float32)
    ratio = best / times["1"]["logitsieve screen"]["median"]
    print(f"\nbest exact float32 / screen at B=1: {ratio:.1f}x")


if __name__ == "__main__":
    main()
