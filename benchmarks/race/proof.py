"""`python -m benchmarks.race.proof`: does `certified` ever err?  A float64 judge of all of H_test.

20,020 contexts of unseen text (lm-docs-10k-200), k = 1, 5, 10, 64, against logits in float64; and
against the head `exact`, ids and logits bit for bit.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import raw
from benchmarks.machine import describe
from benchmarks.race.bars import bars
from benchmarks.race.datasets import Dataset, load
from benchmarks.race.judge import Judge
from benchmarks.race.prepare import CACHE, SHARED
from benchmarks.race.run import OUT
from logitsieve.index_builder import build

KS = (1, 5, 10, 64)


def main() -> None:
    """Judge, write the counts, print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="lm-docs", help="dataset of the race")
    parser.add_argument("--cache", type=Path, default=CACHE, help="datasets and indexes")
    parser.add_argument("--shared", type=Path, default=SHARED, help="the folder with data/")
    parser.add_argument("--out", type=Path, default=OUT / "proof.json.gz")
    options = parser.parse_args()
    results = prove(load(options.data, options.shared, options.cache))
    raw.write(options.out, results)
    print(json.dumps(results["wrong"], indent=1))


def prove(data: Dataset) -> dict[str, Any]:
    """Count wrong rows for each k, by the judge and beside the exact head."""
    hidden = np.concatenate([data.heldout, data.test])
    wrong: dict[str, dict[str, int]] = {}
    with bars() as progress, tempfile.TemporaryDirectory() as folder:
        index = build(
            data.weight,
            data.bias,
            data.fit,
            Path(folder) / "proof" / "1",
            heads=("exact", "certified"),
            heldout=data.heldout,
            progress=progress,
        )
        certified, exact = index.head("certified"), index.head("exact")
        for k in KS:
            judge = Judge(data.softmax, hidden, (k,), progress)
            top, truth = certified.topk(hidden, k), exact.topk(hidden, k)
            same = (top.ids == truth.ids) & (top.logits == truth.logits)
            wrong[str(k)] = {
                "by the float64 judge": judge.score(top.ids).wrong_rows,
                "beside exact, bit for bit": int((~same.all(axis=1)).sum()),
                "not said to be exact": int((~top.exact).sum()),
            }
    return {**describe(), "data": data.provenance, "contexts": len(hidden), "wrong": wrong}


if __name__ == "__main__":
    main()
