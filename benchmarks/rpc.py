"""TopK over gRPC, one row a call, beside echoes. `python -m benchmarks.rpc`.

All are grpc.aio servers in a process of their own, asked by one blocking client on loopback. An
echo parses the same request and returns a reply of the same message and size, prepared beforehand:
what is left is the price of the transport. One echo runs on asyncio's event loop, which a plain
server has, and one on uvloop with gRPC's core set up like ours. Runs alternate; p50 and p99 are
medians over the runs. The client keeps to one core and each server to the other, or the scheduler
decides the numbers. Then whole steps of a decoder, as calls and on a stream (rpc_steps.py).
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import os
import statistics
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter_ns
from typing import Any

import grpc
import numpy as np
import uvloop

from benchmarks import raw
from benchmarks.load.servers import echo_server, our_server
from benchmarks.machine import describe
from benchmarks.rpc_steps import percentiles, show_steps, steps
from logitsieve.index import Index, open_index
from logitsieve.index_builder import BuildConfig, build
from logitsieve.index_builder.data.arrays import load_array
from logitsieve.utils.wire_tensors import put
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.decoder_pb2_grpc import DecoderStub

DATA = Path(__file__).parents[2] / "shared" / "data" / "lm-docs-10k-200.npz"
OUT = raw.RESULTS / "rpc.json.gz"
CALLS, WARM_CALLS, RUNS = 3000, 500, 5
K = 5
LOOPS: dict[str, Callable[[Coroutine[Any, Any, None]], None]] = {
    "asyncio": asyncio.run,
    "uvloop": uvloop.run,
}
ASKED = {"alone": pb.NORMALIZER_UNSPECIFIED, "with log Z over candidates": pb.NORMALIZER_CANDIDATES}


def main() -> None:
    """Start both servers, measure, write the raw numbers, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA, help="lm-docs-10k-200.npz")
    parser.add_argument("--index", type=Path, help="ask this index instead of building one")
    parser.add_argument("--contexts", type=Path, help="contexts for --index, .npy [N, D]")
    parser.add_argument("--out", type=Path, default=OUT, help="raw results, JSON")
    parser.add_argument("--echo", help=argparse.SUPPRESS)  # what the echo process replies
    parser.add_argument("--loop", choices=LOOPS, help=argparse.SUPPRESS)  # that it runs on
    options = parser.parse_args()
    if options.index and not options.contexts:
        parser.error("--index needs --contexts")
    if options.echo:
        LOOPS[options.loop](echo(base64.b64decode(options.echo)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        if options.index:
            index, source = open_index(options.index), str(options.contexts)
        elif options.data.exists():
            index, source = build_index(options.data, Path(scratch)), f"{options.data}:H_test"
        else:
            print(f"{options.data} is absent: pass --index and --contexts")
            return
        contexts = np.asarray(load_array(source)[:2048], np.float32)
        results = {"machine": describe()} | measure(index, contexts)
    raw.write(options.out, results)
    show(results)


def build_index(data: Path, scratch: Path) -> Index:
    """A screen of 100 clusters and 64 candidates a row, fitted without a search."""
    config = BuildConfig(clusters=100, budget=64)
    return build(
        f"{data}:W", f"{data}:b", f"{data}:H_train", scratch / "lm-docs" / "1", config=config
    )


async def echo(reply: bytes) -> None:
    """Parse each request, answer with the same reply; the port is the only line printed."""
    answer = pb.TopKResponse.FromString(reply)

    async def top_k(message: bytes, context: Any) -> bytes:
        pb.TopKRequest.FromString(message)
        return answer.SerializeToString()

    server = grpc.aio.server()
    methods = {"TopK": grpc.unary_unary_rpc_method_handler(top_k)}
    handler = grpc.method_handlers_generic_handler("logitsieve.v1.Decoder", methods)
    server.add_generic_rpc_handlers((handler,))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()


def measure(index: Index, contexts: np.ndarray) -> dict[str, Any]:
    """TopK alone and with log Z, each beside an echo of its own reply; in-process time; steps."""
    head, local = index.head(), []
    for row in contexts:
        start = perf_counter_ns()
        head.topk(row[None], K)
        local.append(perf_counter_ns() - start)
    with keeping_apart() as cpus, our_server(index.path.parents[1], cpus) as address:
        by_step = steps(index, address, contexts)
    return {
        "vocab_size": index.vocab_size,
        "dim": index.dim,
        "k": K,
        "rows": 1,
        "in_process_us_p50": statistics.median(local) / 1000,
        "asked": {name: compare(index, contexts, code) for name, code in ASKED.items()},
        "steps": by_step,
    }


def compare(index: Index, contexts: np.ndarray, normalizer: pb.Normalizer) -> dict[str, Any]:
    """p50 and p99 of the servers in microseconds, and the ratios of alternating runs."""
    requests = [pb.TopKRequest(hidden=put(pb.Tensor(), row[None]), k=K) for row in contexts]
    for request in requests:
        request.target.normalizer = normalizer
    with keeping_apart() as cpus, our_server(index.path.parents[1], cpus) as address:
        ours = stub_of(address)
        reply = ours.TopK(requests[0])
        with echo_server(reply, cpus) as plain, echo_server(reply, cpus, "uvloop") as fast:
            stubs = {"echo": stub_of(plain), "logitsieve": ours, "echo on uvloop": stub_of(fast)}
            runs: dict[str, list[np.ndarray]] = {name: [] for name in stubs}
            for _ in range(RUNS):
                for name, stub in stubs.items():
                    runs[name].append(latencies(stub, requests))
        compute = [ours.TopK(request).answer.compute_ns for request in requests]
    return {
        "request_bytes": requests[0].ByteSize(),
        "reply_bytes": reply.ByteSize(),
        "us": {name: percentiles(found) for name, found in runs.items()},
        "ratios_p50": ratios(runs["logitsieve"], runs["echo"]),
        "ratios_on_uvloop_p50": ratios(runs["logitsieve"], runs["echo on uvloop"]),
        "server_compute_us_p50": statistics.median(compute) / 1000,
    }


def ratios(ours: list[np.ndarray], echo: list[np.ndarray]) -> list[float]:
    """Of the medians of each pair of runs."""
    return [float(np.median(a) / np.median(b)) for a, b in zip(ours, echo, strict=True)]


def latencies(stub: DecoderStub, requests: list[pb.TopKRequest]) -> np.ndarray:
    """Microseconds of each of CALLS calls, after WARM_CALLS that are not counted."""
    taken = np.empty(CALLS)
    for number in range(-WARM_CALLS, CALLS):
        request = requests[number % len(requests)]
        start = perf_counter_ns()
        stub.TopK(request, timeout=5)
        taken[number] = (perf_counter_ns() - start) / 1000
    return taken


@contextmanager
def keeping_apart() -> Iterator[list[int]]:
    """The cores for servers; this process keeps to the first one meanwhile."""
    every = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, every[:1])
    try:
        yield every[1:2] or every
    finally:
        os.sched_setaffinity(0, every)


def stub_of(address: str) -> DecoderStub:
    """A blocking stub on a channel of its own."""
    return DecoderStub(grpc.insecure_channel(address))


def show(results: dict[str, Any]) -> None:
    """A small Markdown table."""
    print(
        f"\n{results['machine']['cpu']}, V={results['vocab_size']:,} D={results['dim']} B=1 k={K}; "
        f"the head in process {results['in_process_us_p50']:.1f} us\n"
    )
    print("| TopK | echo p50 | p99 | ours p50 | p99 us | ours / echo at p50 | compute us |")
    print("|---|---|---|---|---|---|---|")
    for name, found in results["asked"].items():
        echo_us, our_us = found["us"]["echo"], found["us"]["logitsieve"]
        print(
            f"| {name} | {echo_us['p50']:.0f} | {echo_us['p99']:.0f} | {our_us['p50']:.0f} "
            f"| {our_us['p99']:.0f} | {statistics.median(found['ratios_p50']):.3f} "
            f"| {found['server_compute_us_p50']:.1f} |"
        )
    show_steps(results["steps"])


if __name__ == "__main__":
    main()
