"""Builds of a synthetic softmax over workers of Ray: seconds by stage, sha256 of every file.

    python -m benchmarks.building                 # one thread, then 1 and 2 workers

Each worker is a process with one CPU. Load of other programs is noted beside each run.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import Executor
from pathlib import Path
from time import perf_counter
from typing import Any

import ray

from benchmarks import raw
from benchmarks.race.synthetic import add_popularity, make_source, make_words, real_statistics
from logitsieve.api.results import Float32
from logitsieve.index_builder import BuildConfig, build
from logitsieve.index_builder.calibrate import machine
from logitsieve.ray.building import RayExecutor

OUT = raw.RESULTS / "building.json.gz"
CONFIG = BuildConfig(reproducible=True)
ALONE = "one thread"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--words", type=int, default=250_000, help="V")
    parser.add_argument("--dim", type=int, default=200, help="D")
    parser.add_argument("--contexts", type=int, default=200_000, help="a tenth of them judge")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2], help="0: one thread")
    parser.add_argument("--out", type=Path, default=OUT, help="raw results, JSON")
    options = parser.parse_args()
    softmax = make_softmax(options.words, options.dim, options.contexts)
    results = {
        "vocab_size": options.words,
        "dim": options.dim,
        "contexts": options.contexts,
        "machine": machine() | {"cpus": os.cpu_count()},
        "runs": [measure(softmax, workers) for workers in options.workers],
    }
    raw.write(options.out, results)


def make_softmax(words: int, dim: int, contexts: int) -> tuple[Float32, Float32, Float32]:
    """W, b and contexts of the race's synthetic model, with a fixed spread."""
    real = real_statistics()
    source = make_source(real, dim)
    weight, bias, popularity = make_words(real, source, words)
    add_popularity(weight, source, popularity)
    return weight, bias, source.draw(contexts, 1)


def measure(softmax: Sequence[Float32], workers: int) -> dict[str, Any]:
    """One build, by so many workers of Ray or in one thread."""
    if not workers:
        return run(softmax, None, ALONE)
    ray.init(address="local", num_cpus=workers, include_dashboard=False, log_to_driver=False)
    try:
        return run(softmax, RayExecutor(), f"Ray, {workers} worker{'s' * (workers > 1)}")
    finally:
        ray.shutdown()


def run(softmax: Sequence[Float32], executor: Executor | None, name: str) -> dict[str, Any]:
    stages: dict[str, float] = {}
    begun, load = perf_counter(), os.getloadavg()[0]

    def progress(stage: str, done: int, total: int) -> None:
        stages[stage] = perf_counter() - begun

    weight, bias, contexts = softmax
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "synthetic" / "1"
        build(weight, bias, contexts, out, config=CONFIG, progress=progress, executor=executor)
        files = {
            file.name: hashlib.sha256(file.read_bytes()).hexdigest()
            for file in sorted(out.iterdir())
            if file.name != "calibration.json"
        }
    ends = dict(zip(stages, [0.0, *stages.values()], strict=False))
    seconds = {stage: end - ends[stage] for stage, end in stages.items()}
    found = {
        "workers": name,
        "seconds": perf_counter() - begun,
        "stages": seconds,
        "load": [load, os.getloadavg()[0]],
        "files": files,
    }
    print(json.dumps(found), flush=True)
    return found


if __name__ == "__main__":
    main()
