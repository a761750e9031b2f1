"""Trained clusters against plain spherical k-means, and 50 to 250 of them, at equal measured time.

papers/001 (Chen et al. 2019), Table 4 and appendix 7.2. `python -m benchmarks.clusters`.

A screen is fitted on H_train; budgets are set by time and rounds are chosen on the first half of
H_test, precision is reported on its second half.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from logitsieve.evaluation import evaluate, us_per_row
from logitsieve.heads import HEADS, Head, Softmax
from logitsieve.index_builder.arrays import load_array
from logitsieve.index_builder.calibrate import machine
from logitsieve.index_builder.config import BuildConfig
from logitsieve.index_builder.contexts import Contexts, open_contexts
from logitsieve.index_builder.fit_inputs import FitInputs, prepare
from logitsieve.index_builder.fit_screen import (
    FixedBudget,
    Screen,
    plain_centroids,
    spend,
    train_screen,
)
from logitsieve.index_builder.partition import Partition
from logitsieve.utils.options import no_progress

DATA = Path(__file__).parents[2] / "shared" / "data" / "lm-docs-10k-200.npz"
OUT = Path(__file__).parent / "results" / "clusters.json"
CLUSTERS = (50, 100, 200, 250)  # the paper's Table 4
REFERENCE = (100, 60.0)  # clusters and budget whose time all others are given
TIMED_ROWS, REPEATS = 2048, 7
HALVINGS = 7
Arrays = Mapping[str, np.ndarray]


class Bench(NamedTuple):
    """The frozen softmax, the material, and where precision is judged."""

    softmax: Softmax
    exact: Head
    material: FitInputs
    judged: Contexts

    def screen(self, arrays: Arrays) -> Head:
        """A head over `arrays`."""
        return HEADS["screen"].from_arrays(
            self.softmax, arrays, fallback=self.exact, threads=1, knobs={}
        )

    def us(self, arrays: Arrays) -> float:
        """Microseconds a row at B = 1, k = 5: the least of some medians, since load only adds."""
        head, hidden = self.screen(arrays), next(self.judged.blocks(TIMED_ROWS))
        return min(us_per_row(head, hidden, 5, 1) for _ in range(REPEATS))

    def point(self, arrays: Arrays) -> dict[str, float]:
        """Everything a table row needs."""
        found = evaluate(self.screen(arrays), self.exact, self.judged.blocks(256), (1, 5))
        return {
            "us_per_row": self.us(arrays),
            "candidates": found.scanned[5],
            "p1": found.precision[1].mean,
            "p1_low": found.precision[1].low,
            "p5": found.precision[5].mean,
            "p5_low": found.precision[5].low,
        }


def main() -> None:
    """Measure, write the raw numbers, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA, help="lm-docs-10k-200.npz")
    parser.add_argument("--out", type=Path, default=OUT, help="raw results, JSON")
    parser.add_argument("--labels", type=int, default=7, help="labels a context, k'")
    parser.add_argument("--rounds", type=int, default=BuildConfig().rounds, help="rounds, T")
    parser.add_argument("--seeds", type=int, default=3, help="fits of each setting")
    options = parser.parse_args()
    if not options.data.exists():
        print(f"{options.data} is absent: nothing measured")
        return
    torch.set_num_threads(1)
    config = BuildConfig(labels=options.labels, rounds=options.rounds)
    with tempfile.TemporaryDirectory() as scratch:
        bench = load(options.data, config, Path(scratch))
        results = measure(bench, config, options.seeds)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    show(results)


def load(data: Path, config: BuildConfig, scratch: Path) -> Bench:
    """Label the contexts; the first half of H_test is held out, the second is judged."""
    softmax = Softmax(load_array(f"{data}:W"), load_array(f"{data}:b"))
    exact = HEADS["exact"].from_arrays(softmax, {}, fallback=None, threads=1, knobs={})
    train = open_contexts(f"{data}:H_train", softmax.dim, scratch, "contexts")
    test = open_contexts(f"{data}:H_test", softmax.dim, scratch, "heldout")
    half = test.rows // 2
    material = prepare(
        exact,
        softmax,
        train,
        test.between(0, half),
        config.labels,
        config,
        scratch,
        no_progress,
    )
    return Bench(softmax, exact, material, test.between(half, test.rows))


def measure(bench: Bench, config: BuildConfig, seeds: int) -> dict[str, Any]:
    """One record for each number of clusters and seed: plain and trained, at the same time."""
    clusters, budget = REFERENCE
    reference = fit(bench, replace(config, clusters=clusters, budget=budget))
    time_us = bench.us(reference.arrays)
    records = []
    for clusters in CLUSTERS:
        for seed in range(seeds):
            own = replace(config, clusters=clusters, seed=seed)
            records.append({"clusters": clusters, "seed": seed, **compare(bench, own, time_us)})
            print(records[-1], flush=True)
    hidden = next(bench.judged.blocks(TIMED_ROWS))
    return {
        "machine": machine(),
        "vocab_size": bench.softmax.vocab_size,
        "dim": bench.softmax.dim,
        "batch": 1,
        "k": 5,
        "time_us": time_us,
        "exact_us": {
            "logitsieve": us_per_row(bench.exact, hidden, 5, 1),
            "numpy": us_per_row(NumpyExact(bench.softmax), hidden, 5, 1),
        },
        "labels": config.labels,
        "rounds": config.rounds,
        "records": records,
    }


class NumpyExact:
    """The exact softmax's top-k as one writes it in numpy."""

    def __init__(self, softmax: Softmax) -> None:
        self._softmax = softmax

    def warm(self) -> None:
        """Nothing to compile."""

    def topk(self, hidden: np.ndarray, k: int) -> Any:
        """[B, k] ids, best first."""
        logits = hidden @ self._softmax.weight.T + self._softmax.bias
        best = np.argpartition(logits, -k, axis=1)[:, -k:]
        order = np.argsort(-np.take_along_axis(logits, best, axis=1), axis=1)
        return np.take_along_axis(best, order, axis=1)


def fit(bench: Bench, config: BuildConfig) -> Screen:
    """Algorithm 1 at the budget of `config`."""
    return train_screen(
        bench.material, start(bench, config), FixedBudget(config.budget), config, no_progress
    )


def start(bench: Bench, config: BuildConfig) -> Partition:
    """Plain spherical k-means."""
    centroids_CD = plain_centroids(bench.material, config, config.clusters)
    return Partition(bench.material, centroids_CD, config.labels, config.waste_weight)


def compare(bench: Bench, config: BuildConfig, time_us: float) -> dict[str, Any]:
    """Plain k-means at the budget that takes `time_us`; trained at that budget, timed again."""
    plain = start(bench, config)
    budget = budget_of_time(bench, plain, time_us)
    goal = FixedBudget(budget)
    trained = train_screen(bench.material, plain, goal, config, no_progress).partition
    final = budget_of_time(bench, trained, time_us)
    return {
        "plain": {"budget": budget, **bench.point(lists(plain, budget))},
        "trained": {"budget": final, **bench.point(lists(trained, final))},
    }


def budget_of_time(bench: Bench, partition: Partition, time_us: float) -> float:
    """The largest budget at which a row takes at most `time_us`."""
    low, high = float(partition.depth), partition.knapsack.everything
    if bench.us(lists(partition, high)) <= time_us:
        return high
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if bench.us(lists(partition, middle)) <= time_us:
            low = middle
        else:
            high = middle
    return low


def lists(partition: Partition, budget: float) -> Arrays:
    """The screen's arrays at a budget."""
    return partition.arrays(partition.knapsack.select(spend(partition, budget)))


def show(results: Mapping[str, Any]) -> None:
    """The two comparisons as one table, means over the seeds."""
    about = results["machine"]
    print(
        f"\n{about['cpu']}, 1 thread, float32, V={results['vocab_size']:,} D={results['dim']} "
        f"B={results['batch']} k={results['k']}; k'={results['labels']}, T={results['rounds']}"
    )
    exact = ", ".join(f"{name} {us:.1f} us" for name, us in results["exact_us"].items())
    print(f"exact softmax: {exact}; every screen is given {results['time_us']:.2f} us a row\n")
    print("clusters  screen    us/row  candidates  P@1     P@5     exact numpy / screen")
    for clusters in CLUSTERS:
        for kind in ("plain", "trained"):
            mean = averages(results, clusters, kind)
            ratio = results["exact_us"]["numpy"] / mean("us_per_row")
            print(
                f"{clusters:8}  {kind:8}  {mean('us_per_row'):6.2f}  {mean('candidates'):10.1f}"
                f"  {mean('p1'):.4f}  {mean('p5'):.4f}  {ratio:.1f}x"
            )


def averages(results: Mapping[str, Any], clusters: int, kind: str) -> Callable[[str], float]:
    """The mean of a number over the seeds."""
    chosen = [entry[kind] for entry in results["records"] if entry["clusters"] == clusters]
    return lambda name: float(np.mean([entry[name] for entry in chosen]))


if __name__ == "__main__":
    main()
