"""Kernels that read a model's output layer: what each call reads, and the time of reading as much.

`python -m benchmarks.kernels --model NAME INDEX CONTEXTS`, again for each model, gives the bytes,
time and bandwidth of each grade of its sketch and of `full`, on contexts that `logitsieve capture`
wrote. Results by AVX-512 and by AVX2 stand side by side: run it again held to AVX2.
"""

from collections.abc import Callable
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import numpy as np

from benchmarks import raw
from benchmarks.machine import aligned, describe, median_ns, read_all
from benchmarks.tables.service import model_kernels as table
from logitsieve.api.results import Float32, Float64
from logitsieve.heads.sketch import GRADES
from logitsieve.index import Index, open_index
from logitsieve.index_builder.contexts import open_contexts
from logitsieve.kernels.compile import kernel
from logitsieve.kernels.sampling.floors import no_noise
from logitsieve.kernels.simd.dots import row_of
from logitsieve.kernels.simd.lanes import cpu_has
from logitsieve.kernels.simd.pointers import int64_pointer, keep_alive, pointer, shift
from logitsieve.kernels.sketch.levels import LEVEL_COUNT
from logitsieve.kernels.sketch.sieve import (
    DONE,
    FORGET,
    READ,
    first_groups,
    sieve,
    sieved_of,
    sieving_size,
)
from logitsieve.kernels.topk.queries import LOGITS, begin_block, query_size

K = 5
ROWS = 24  # contexts, far apart
TURNS = 7  # of all calls; a call's time is the least of its turns
CALLS = (1, 1), (8, 1), (1, 2)  # rows and threads


def main() -> None:
    parser = raw.parser(__doc__, "model-kernels.json.gz")
    parser.add_argument(
        "--model", nargs=3, action="append", metavar=("NAME", "INDEX", "CONTEXTS"), required=True
    )
    options, about = parser.parse_args(), describe()
    models = [
        one
        for name, index, contexts in options.model
        for one in measure_model(name, Path(index), Path(contexts))
    ]
    widest = "AVX-512" if cpu_has("avx512f") else "AVX2" if cpu_has("avx2") else "others"
    found = raw.read(options.out) | {widest: {"machine": about, "k": K, "records": models}}
    raw.write(options.out, found)
    print(f"{about}\n\n{table(found)}")


@kernel("(int64, float32[:,::1], int64, float64[:,::1])")
def groups_read(address: int, hidden_states: Any, limit: int, read: Any) -> int:
    """Fill read [B, 4]: the groups whose levels a row reads, and the rows of W that it computes."""
    descriptor, one, bad = int64_pointer(address), np.int64(1), -1
    dim, groups = hidden_states.shape[1], first_groups(descriptor, limit)
    own, ids = query_size(dim, limit) + LOGITS, np.empty(limit, np.int32)
    scratch = np.empty(own + sieving_size(descriptor, one, groups, limit, FORGET), np.float64)
    sieving = shift(pointer(scratch), own)
    for row in range(len(hidden_states)):
        queries, bad = begin_block(
            descriptor, pointer(scratch), one, row_of(pointer(hidden_states), row, dim),
            pointer(ids), np.int64(0), one, limit, False,
        )  # fmt: skip
        if bad >= 0:
            break
        sieve(descriptor, queries, sieving, groups, one, FORGET, no_noise())
        counts = sieved_of(descriptor, sieving, 0, groups, limit, FORGET).counts
        for level in range(LEVEL_COUNT):
            read[row, level] = counts[READ + level]
        read[row, LEVEL_COUNT] = counts[DONE]
    keep_alive((scratch, ids))
    return bad


def sketch_bytes(head: Any, hidden_states: Float32) -> float:
    """Bytes that a row's answer reads, on average: levels, level 0, directions, rows of W."""
    read: Float64 = np.empty((len(hidden_states), LEVEL_COUNT + 1))
    assert groups_read(head._address, hidden_states, K, read) < 0, "a context is refused"
    arrays, stored = head._arrays, head._softmax.stored
    sizes = [arrays[name].shape[1] for name in ("first", "middle", "fine")]
    whole = arrays["coarse"].nbytes + arrays["directions"].nbytes
    return float(read.mean(0) @ [*sizes, stored.nbytes / len(stored)]) + whole


def read_rate(size: int) -> float:
    """GB/s of one thread over as many bytes, again and again."""
    values = aligned(np.ones(size // 256 * 64, np.float32))
    return int(values.nbytes) / median_ns(lambda: read_all(values, 1))


def measure_model(name: str, index: Path, contexts: Path) -> list[dict[str, Any]]:
    """Each grade of a sketch, and `full`, for a row, for more rows, and by two threads."""
    opened = {threads: open_index(index, threads=threads) for threads in (1, 2)}
    held = open_contexts(contexts, opened[1].softmax.dim)
    most = max(count for count, _ in CALLS)
    starts = np.arange(ROWS) * (held.rows - most) // ROWS
    sizes: dict[str, float] = {"full": opened[1].softmax.stored.nbytes}
    calls: dict[tuple[str, int, int], list[Callable[[], object]]] = {}
    for count, threads in CALLS:
        rows = [held.take(start + np.arange(count)) for start in starts]
        for label, head in _heads(opened[threads]).items():
            if label not in sizes:
                sizes[label] = sketch_bytes(head, held.take(starts))
            some = [lambda h=head, r=r: h.topk(r, K) for r in rows]  # type: ignore[misc]
            calls[label, count, threads] = some
    times = {key: np.full(ROWS, np.inf) for key in calls}
    for _ in range(TURNS):
        for key, some in calls.items():
            for i, call in enumerate(some):
                begun = perf_counter_ns()
                call()
                times[key][i] = min(times[key][i], perf_counter_ns() - begun)
    rates = {label: read_rate(int(size)) for label, size in sizes.items()}
    return [
        {
            "model": name, "kernel": label, "batch": count, "threads": threads,
            "bytes": sizes[label], "us": float(np.median(found)) / 1000, "read_GBps": rates[label],
        }
        for (label, count, threads), found in times.items()
    ]  # fmt: skip


def _heads(index: Index) -> dict[str, Any]:
    grades = {f"sketch {grade:g}": index.head("sketch", max_error=grade) for grade in GRADES}
    return {"full": index.head("full"), **grades}


if __name__ == "__main__":
    main()
