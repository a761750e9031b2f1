"""Each kernel's time beside what the machine allows: bytes over bandwidth, or products over peak.

`python -m benchmarks.kernels`. A kernel is bound by the larger of two times: reading its bytes from
the cache level that holds them (measured in the same run), and its multiply-adds at the rate of a
loop that does nothing else. Entry kernels are called directly; benchmarks.screen
has what Python adds.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np

from benchmarks import raw
from benchmarks.machine import Bandwidth, aligned, describe, fused_peak
from logitsieve.heads import CertifiedHead, ExactHead, ScreenHead, Softmax
from logitsieve.index_builder.fit.certified import Widths, code, narrow_rotation, second_moments
from logitsieve.index_builder.fit.rotated_rows import factored, turn
from logitsieve.kernels.sketch.sketch import EXTRA
from logitsieve.kernels.topk.exact_topk import csr_logits

OUT = raw.RESULTS / "kernels.json.gz"
SHAPES = ((10_000, 200), (15_852, 512), (10_000, 1_500), (80_000, 400), (250_000, 1_024))
CLUSTERS, LISTED = 100, 64
WIDTHS = Widths(64, 128)
K = 5
LIMIT_NS = 400_000_000


class Work(NamedTuple):
    """One call's cost: bytes to read, size of the data they lie in, multiply-adds."""

    name: str
    call: Callable[[], object]
    rows: int
    bytes_read: float
    working_set: int
    products: float


def main() -> None:
    """Measure every kernel at every shape, write the raw numbers, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=OUT, help="raw results, JSON")
    options = parser.parse_args()
    about = describe()
    bandwidth, peak = Bandwidth(**about["read_GBps"]), fused_peak()
    about["multiply_adds_per_ns"] = peak
    records = []
    print(
        f"{about['cpu']}, 1 thread; read GB/s {about['read_GBps']}; {peak:.0f} multiply-adds/ns\n"
    )
    print("| kernel | V | D | us/row | bound us/row | share of bound | bound by |")
    print("|---|---|---|---|---|---|---|")
    for vocab_size, dim in SHAPES:
        for work in works(vocab_size, dim):
            record = measure(work, bandwidth, peak) | {"vocab_size": vocab_size, "dim": dim}
            records.append(record)
            print(
                f"| {record['name']} | {vocab_size:,} | {dim:,} | {record['us_per_row']:.2f} "
                f"| {record['bound_us_per_row']:.2f} | {record['share']:.0%} | {record['by']} |",
                flush=True,
            )
    results = {"machine": about, "k": K, "threads": 1, "records": records}
    raw.write(options.out, results)


def works(vocab_size: int, dim: int) -> list[Work]:
    """Every kernel over a seeded softmax of this shape, with lists of 64 candidates a cluster."""
    random = np.random.default_rng(0)
    decay = np.exp(-np.arange(dim, dtype=np.float32) / (dim / 8))  # for a sketch to work with
    weight = aligned(random.standard_normal((vocab_size, dim), np.float32) * decay)
    softmax = Softmax(weight, np.zeros(vocab_size, np.float32))
    hidden = aligned(random.standard_normal((512, dim), np.float32) * decay)
    exact = ExactHead(softmax)
    moments = second_moments(weight), second_moments(hidden)
    turning = factored(*narrow_rotation(*moments, min(dim, WIDTHS.fine - EXTRA)))
    order = np.arange(vocab_size, dtype=np.int32)
    sketch = code(softmax, turn(softmax, turning), WIDTHS, order)
    certified = CertifiedHead(softmax, {name: aligned(array) for name, array in sketch.items()})
    bounds = sketch["coarse"].nbytes
    turned = sketch["directions"].nbytes + sketch["triangle"].nbytes // 2
    byte_products = 2 * vocab_size * WIDTHS.coarse / 4  # of two planes; four are as one product
    lists = [random.permutation(vocab_size)[:LISTED] for _ in range(CLUSTERS)]
    arrays = {
        "centroids": aligned(random.standard_normal((CLUSTERS, dim), np.float32)),
        "offsets": np.arange(CLUSTERS + 1, dtype=np.int32) * LISTED,
        "ids": np.concatenate(lists).astype(np.int32),
    }
    screen = ScreenHead.from_arrays(softmax, arrays, fallback=exact, threads=1, knobs={})
    whole, listed = weight.nbytes, LISTED * dim * 4
    codes, hot = CLUSTERS * dim, min(weight.nbytes, CLUSTERS * LISTED * dim * 4)
    row = Rows(hidden)
    found = screen.candidates(hidden[:1], K)
    logits = np.empty(len(found.ids), np.float64)
    address = softmax.descriptor.ctypes.data
    return [
        Work("exact, B=1", lambda: exact.topk(row(1), K), 1, whole, whole, whole / 4),
        Work("exact, B=64", lambda: exact.topk(row(64), K), 64, whole, whole, 64 * whole / 4),
        Work(
            "certified, B=1", lambda: certified.topk(row(1), K), 1, bounds + turned, bounds,
            byte_products + turned / 4,
        ),
        Work(
            "certified, B=64", lambda: certified.topk(row(64), K), 64, bounds + turned, bounds,
            64 * (byte_products + turned / 4),
        ),
        Work("screen, B=1", lambda: screen.topk(row(1), K), 1, codes + listed, hot, listed / 4),
        Work(
            "screen, B=64",
            lambda: screen.topk(row(64), K),
            64,
            64 * (codes + listed),
            hot,
            64 * listed / 4,
        ),
        Work(
            "csr_logits",
            lambda: csr_logits(address, row(1), found.offsets, found.ids, logits),
            1,
            listed,
            listed,
            2 * listed / 4,
        ),
        Work("log Z, B=1", lambda: exact.log_z(row(1), 1.0), 1, whole, whole, whole / 2),
        Work("log Z, B=64", lambda: exact.log_z(row(64), 1.0), 64, whole, whole, 64 * whole / 2),
        Work("quick log Z, B=1", lambda: exact.quick_log_z(row(1)), 1, whole, whole, whole / 4),
    ]  # fmt: skip


class Rows:
    """Other rows of hidden at each call, as in service."""

    def __init__(self, hidden: np.ndarray) -> None:
        self._batches = {n: [hidden[i : i + n] for i in range(0, 512 - n + 1, n)] for n in (1, 64)}
        self._place = 0

    def __call__(self, batch: int) -> np.ndarray:
        """The next batch of that many rows."""
        self._place += 1
        choices = self._batches[batch]
        return choices[self._place % len(choices)]


def measure(work: Work, bandwidth: Bandwidth, peak: float) -> dict[str, Any]:
    """Median time of a call against its bound."""
    work.call()
    times: list[int] = []
    begun = perf_counter_ns()
    while len(times) < 5 or (perf_counter_ns() - begun < LIMIT_NS and len(times) < 20_000):
        start = perf_counter_ns()
        work.call()
        times.append(perf_counter_ns() - start)
    reading = work.bytes_read / bandwidth.of(work.working_set)
    computing = work.products / peak
    bound, taken = max(reading, computing), statistics.median(times)
    return {
        "name": work.name,
        "us_per_row": taken / work.rows / 1000,
        "bound_us_per_row": bound / work.rows / 1000,
        "share": bound / taken,
        "by": "reading" if reading >= computing else "multiply-adds",
    }


if __name__ == "__main__":
    main()
