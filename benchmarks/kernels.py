"""Each kernel's time beside what the machine allows: bytes over bandwidth, or products over peak.

`python -m benchmarks.kernels`. A kernel is bound by the larger of two times: reading its bytes from
the cache level that holds them (measured in the same run), and its multiply-adds at the rate of a
loop that does nothing else. Entry kernels are called directly; benchmarks.screen
has what Python adds.

With `--model NAME INDEX CONTEXTS`, again for each model, the bytes, time and bandwidth of each
grade of its sketch and of `full`, on contexts that `logitsieve capture` wrote. Results by AVX-512
and by AVX2 stand side by side: run it again held to AVX2.
"""

import statistics
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from time import perf_counter_ns
from typing import Any, NamedTuple

import numpy as np

from benchmarks import raw
from benchmarks.machine import aligned, describe, fused_peak, level_of
from benchmarks.model_kernels import K, measure_model
from benchmarks.tables.service import kernels as table
from benchmarks.tables.service import model_kernels as model_table
from logitsieve.heads import FullHead, ScreenHead, SketchHead, Softmax
from logitsieve.index_builder.fit import sketch as fit
from logitsieve.index_builder.fit.sketch import rotate, rounded
from logitsieve.kernels.simd.lanes import cpu_has
from logitsieve.kernels.topk.exact_topk import csr_logits

SHAPES = ((10_000, 200), (15_852, 512), (10_000, 1_500), (80_000, 400), (250_000, 1_024))
CLUSTERS, LISTED = 100, 64
FIRST = 16  # coordinates in eight bits
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
    parser = raw.parser(__doc__, "kernels.json.gz")
    parser.add_argument("--model", nargs=3, action="append", metavar=("NAME", "INDEX", "CONTEXTS"))
    options, about = parser.parse_args(), describe()
    if options.model:
        models = [
            one
            for name, index, contexts in options.model
            for one in measure_model(name, Path(index), Path(contexts))
        ]
        out = options.out.with_name("model-" + options.out.name)
        found = raw.read(out) | {instructions(): {"machine": about, "k": K, "records": models}}
        raw.write(out, found)
        print(f"{about}\n\n{model_table(found)}")
        return
    peak = fused_peak()
    about["multiply_adds_per_ns"] = peak
    records = [
        measure(work, about, peak) | {"vocab_size": vocab_size, "dim": dim}
        for vocab_size, dim in SHAPES
        for work in works(vocab_size, dim)
    ]
    raw.write(options.out, {"machine": about, "k": K, "threads": 1, "records": records})
    print(f"{about}, 1 thread\n\n{table(records)}")


def instructions() -> str:
    """Name the widest that kernels are compiled for."""
    return "AVX-512" if cpu_has("avx512f") else "AVX2" if cpu_has("avx2") else "others"


def works(vocab_size: int, dim: int) -> list[Work]:
    """Every kernel over a seeded softmax of this shape, with lists of 64 candidates a cluster."""
    random = np.random.default_rng(0)
    decay = np.exp(-np.arange(dim, dtype=np.float32) / (dim / 8))  # for a sketch to work with
    weight = aligned(random.standard_normal((vocab_size, dim), np.float32) * decay)
    softmax = Softmax(weight, np.zeros(vocab_size, np.float32))
    hidden_states = aligned(random.standard_normal((512, dim), np.float32) * decay)
    full = FullHead(softmax)
    moments = (
        fit.second_moments(weight, fit.RIDGE),
        fit.second_moments(hidden_states, fit.CONTEXT_RIDGE),
    )
    basis = fit.rotated_at_random(fit.balanced(*moments), FIRST, seed=0)
    sketch = fit.code(rotate(softmax, rounded(basis)), FIRST)
    coded = {name: aligned(array) for name, array in sketch.items()}
    bounded = SketchHead(softmax, coded, knobs={"max_error": 0.0})
    bounds, turned = sketch["coarse"].nbytes, sketch["directions"].nbytes
    byte_products = 2 * vocab_size * FIRST / 4  # of two planes; four are as one product
    lists = [random.permutation(vocab_size)[:LISTED] for _ in range(CLUSTERS)]
    arrays = {
        "centroids": aligned(random.standard_normal((CLUSTERS, dim), np.float32)),
        "offsets": np.arange(CLUSTERS + 1, dtype=np.int32) * LISTED,
        "ids": np.concatenate(lists).astype(np.int32),
    }
    screen = ScreenHead.from_arrays(softmax, arrays, fallback=full, threads=1, knobs={})
    whole, listed = weight.nbytes, LISTED * dim * 4
    codes, hot = CLUSTERS * dim, min(weight.nbytes, CLUSTERS * LISTED * dim * 4)
    rows = {
        n: cycle([hidden_states[i : i + n] for i in range(0, len(hidden_states), n)])
        for n in (1, 64)
    }
    row = rows[1].__next__  # others at each call, as in service
    found = screen.candidates(hidden_states[:1], K)
    logits = np.empty(len(found.ids), np.float64)
    address = softmax.descriptor.ctypes.data

    def of_batch(count: int) -> list[Work]:
        some, products = rows[count].__next__, count * whole / 4
        read, coded = bounds + turned, count * (byte_products + turned / 2)
        routed = count * (codes + listed)
        return [
            Work("full", lambda: full.topk(some(), K), count, whole, whole, products),
            Work("sketch 0", lambda: bounded.topk(some(), K), count, read, bounds, coded),
            Work("screen", lambda: screen.topk(some(), K), count, routed, hot, count * listed / 4),
            Work("log Z", lambda: full.log_z(some(), 1.0), count, whole, whole, 2 * products),
        ]

    def csr() -> None:
        csr_logits(address, row(), found.offsets, found.ids, logits)

    works = [w._replace(name=f"{w.name}, B={n}") for n in rows for w in of_batch(n)]
    return [
        *works,
        Work("csr_logits", csr, 1, listed, listed, listed / 2),
        Work("quick log Z, B=1", lambda: full.quick_log_z(row()), 1, whole, whole, whole / 4),
    ]


def measure(work: Work, about: dict[str, Any], peak: float) -> dict[str, Any]:
    """Median time of a call against its bound."""
    work.call()
    times: list[int] = []
    begun = perf_counter_ns()
    while len(times) < 5 or (perf_counter_ns() - begun < LIMIT_NS and len(times) < 20_000):
        start = perf_counter_ns()
        work.call()
        times.append(perf_counter_ns() - start)
    reading = work.bytes_read / about["read_GBps"][level_of(work.working_set)]
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
