"""The service under load, in some five minutes. `python -m benchmarks.load --help`.

closed     1, 16 and 64 clients, each with its next call when it has the answer to the last, of
           1, 8 and 64 rows a call: the index's own head, the head `full`, and an echo on the
           same gRPC stack that answers all by one reply. The echo is what the transport costs.
batching   64 clients with single rows of `full`: each request alone, then batches of those that
           queue, by how long a request waits for others (--batch-delay-us).
overload   64 rows of `full` a call: the peak of a closed loop, then twice as many calls as that,
           which arrive whatever becomes of those before them and wait 1 s. Goodput is answers in
           time; who is refused must hear RESOURCE_EXHAUSTED with grpc-retry-pushback-ms, or
           DEADLINE_EXCEEDED. The aim: a goodput of at least 0.9 of the peak.
deadlines  The same for single rows of the own head, which wait 100, 200 or 500 ms, at 1, 2 and 4
           times the peak, by clients that hold calls back like ours. The aim: 0.9 of the peak,
           and refusals within 20 ms.
others     The same by clients that hold none back.

Clients are gRPC's of Python in the first two parts. They could not offer several times the peak
on one core, so the others send plain HTTP/2 (wire.py).

Server and clients are processes of their own, kept to half of the cores each: with two cores, one
each. Let nothing else run, or the shares say more about that than about the server.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import raw
from benchmarks.load.clients import Plan
from benchmarks.load.servers import echo_server, load, our_server
from benchmarks.machine import describe
from benchmarks.race.datasets import DATASETS
from benchmarks.race.datasets import load as load_data
from benchmarks.rpc import SCREEN, K, stub_of
from benchmarks.tables import service
from logitsieve.index import Index
from logitsieve.utils.wire_tensors import put
from logitsieve.v1 import decoder_pb2 as pb

ROWS, CLIENTS = (1, 8, 64), (1, 16, 64)
OVERLOAD = 2.0
OVERLOAD_ROWS = 64
DEADLINES_S, TIMES = (0.1, 0.2, 0.5), (1, 2, 4)
SETTLE_S = 3.0  # until a queue under overload is as long as it gets
server = partial(our_server, shadow_share=0)


def main() -> None:
    parser = raw.parser(__doc__, "load.json.gz")
    parser.add_argument("--data", choices=DATASETS, default="lm-docs", help="dataset of the race")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each of 53 measurements")
    parser.add_argument("--only", choices=PARTS, help="measure this part alone, keep the others")
    options = parser.parse_args()
    data = load_data(options.data)
    with data.built(config=SCREEN) as index:
        contexts = index.path.parents[1] / "contexts.npy"
        np.save(contexts, data.test[:4096])
        parts = [options.only] if options.only else list(PARTS)
        results = {"machine": describe()} | measure(index, contexts, options.seconds, parts)
    if options.only:
        results = raw.read(options.out) | {options.only: results[options.only]}
    raw.write(options.out, results)
    text = service.load_page(results)
    page = options.out.with_name(options.out.name.partition(".")[0] + ".md")
    page.write_text(text, encoding="utf-8")
    print(text)


def measure(index: Index, contexts: Path, seconds: float, parts: list[str]) -> dict[str, Any]:
    """Each part on servers of its own."""
    cpus = sorted(os.sched_getaffinity(0))
    half = max(1, len(cpus) // 2)
    ours, theirs = cpus[:half], cpus[half:] or cpus
    plan = Plan(address="", contexts=str(contexts), rows=1, k=K, seconds=seconds, cpus=theirs)
    return {
        "vocab_size": index.vocab_size,
        "dim": index.dim,
        "k": K,
        "threads": 1,
        "seconds": seconds,
        "cpus": {"server": ours, "clients": theirs},
    } | {name: PARTS[name](index, plan, ours) for name in parts}


def closed_loops(index: Index, plan: Plan, cpus: list[int]) -> list[dict[str, Any]]:
    """Results by rows and clients: the default head, full, and an echo of such a reply."""
    found = []
    for rows in ROWS:
        hidden_states = np.load(plan.contexts, mmap_mode="r")[:rows]
        request = pb.TopKRequest(hidden_states=put(pb.Tensor(), hidden_states), k=plan.k)
        with (
            server(index, cpus) as address,
            echo_server(stub_of(address).TopK(request), cpus) as other,
        ):
            for clients in CLIENTS:
                asked = replace(plan, address=address, rows=rows, clients=clients)
                runs = {
                    "echo": load(replace(asked, address=other)),
                    "own head": load(asked),
                    "full": load(replace(asked, head="full")),
                }
                found.append({"rows": rows, "clients": clients, "runs": runs})
    return found


def batching(index: Index, plan: Plan, cpus: list[int]) -> list[dict[str, Any]]:
    """Single rows of the full head: one request a batch, and batches by how long they wait."""
    asked = replace(plan, rows=1, head="full", clients=max(CLIENTS))
    with server(index, cpus) as address:
        runs = {"alone": load(replace(asked, address=address, alone=True))}
    for delay_us in (0, 100, 200):
        with server(index, cpus, batch_delay_us=delay_us) as address:
            runs[f"delay {delay_us} us"] = load(replace(asked, address=address))
    return [{"clients": asked.clients, "runs": runs}]


def overload(index: Index, plan: Plan, cpus: list[int]) -> dict[str, Any]:
    """Goodput at the peak, and when OVERLOAD times that arrives."""
    with server(index, cpus) as address:
        asked = replace(plan, address=address, rows=OVERLOAD_ROWS, head="full", clients=16)
        peak = load(asked, "wire")
        arriving = OVERLOAD * peak["good_per_s"]
        flood = replace(asked, per_s=arriving, timeout_s=1.0, warm_s=SETTLE_S)
        twice = load(flood, "wire")
    return {
        "rows": OVERLOAD_ROWS,
        "share_of_peak": twice["good_per_s"] / peak["good_per_s"],
        "runs": {"peak": peak, f"{OVERLOAD:g}x": twice},
    }


def deadlines(throttled: bool, index: Index, plan: Plan, cpus: list[int]) -> dict[str, Any]:
    """Goodput of single rows at the peak of a closed loop, and at multiples of it by deadline."""
    with server(index, cpus) as address:
        asked = replace(plan, address=address, clients=64)
        peak = load(asked, "wire")
        runs = {"peak": peak}
        asked = replace(asked, throttled=throttled, warm_s=SETTLE_S)
        for timeout_s, times in product(DEADLINES_S, TIMES):
            flood = replace(asked, per_s=times * peak["good_per_s"], timeout_s=timeout_s)
            runs[f"{1000 * timeout_s:g} ms, {times}x"] = load(flood, "wire")
    return {"runs": runs}


PARTS: dict[str, Callable[[Index, Plan, list[int]], Any]] = {
    "closed": closed_loops,
    "batching": batching,
    "overload": overload,
    "deadlines": partial(deadlines, True),
    "others": partial(deadlines, False),
}


if __name__ == "__main__":
    main()
