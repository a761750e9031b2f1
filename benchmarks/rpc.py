"""TopK over gRPC beside echoes, and steps of a decoder. `python -m benchmarks.rpc`.

All are grpc.aio servers in a process of their own, asked by one blocking client on loopback. An
echo parses the same request and returns a reply of the same message and size, prepared beforehand:
what is left is the price of the transport. One echo runs on asyncio's event loop, which a plain
server has, and one on uvloop with gRPC's core set up like ours. Runs alternate; p50 and p99 are
medians over the runs. The client keeps to one core and each server to the other, or the scheduler
decides the numbers. Steps go through our client, as calls of their own, on a stream, and in
process.
"""

import os
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter_ns
from typing import Any

import grpc
import numpy as np

from benchmarks import raw
from benchmarks.machine import describe
from benchmarks.race.datasets import DATASETS, load
from benchmarks.servers import echo_server, our_server
from benchmarks.tables import service
from logitsieve.client import DecoderClient
from logitsieve.decoding import LocalDecoder
from logitsieve.index import Index
from logitsieve.index_builder import BuildConfig
from logitsieve.utils.wire_tensors import put
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.decoder_pb2_grpc import DecoderStub

SCREEN = BuildConfig(clusters=100, budget=64)  # fitted without a search
CALLS, RUNS = 3000, 5
K = 5
ASKED = {"alone": pb.NORMALIZER_UNSPECIFIED, "with log Z over candidates": pb.NORMALIZER_CANDIDATES}
Way = Callable[[Any], object]  # answers a request
STEPS: dict[str, Callable[[Any, np.ndarray], object]] = {
    "top_k": lambda decoder, rows: decoder.topk(rows, K),
    "beam_step": lambda decoder, rows: decoder.beam_step(rows, beams_in=5, beams_out=5),
}
STEP_CALLS, STEP_ROWS = 400, (("top_k", 1), ("beam_step", 5), ("beam_step", 160))


def main() -> None:
    parser = raw.parser(__doc__, "rpc.json.gz")
    parser.add_argument("--data", choices=DATASETS, default="lm-docs", help="dataset of the race")
    options = parser.parse_args()
    data = load(options.data)
    with data.built(config=SCREEN) as index:
        results = {"machine": describe()} | measure(index, data.test[:2048])
    raw.write(options.out, results)
    print(f"\n{results['machine']['cpu']}, V={results['vocab_size']:,} D={results['dim']} k={K}\n")
    print(service.calls(results["asked"]), service.steps(results["steps"]), sep="\n")


def measure(index: Index, contexts: np.ndarray) -> dict[str, Any]:
    """TopK alone and with log Z, each beside an echo of its own reply; steps."""
    return {
        "vocab_size": index.vocab_size,
        "dim": index.dim,
        "k": K,
        "rows": 1,
        "asked": {name: compare(index, contexts, code) for name, code in ASKED.items()},
        "steps": steps(index, contexts),
    }


def compare(index: Index, contexts: np.ndarray, normalizer: pb.Normalizer) -> dict[str, Any]:
    """p50 and p99 of the servers in microseconds, and the ratios of alternating runs."""
    requests = [pb.TopKRequest(hidden_states=put(pb.Tensor(), row[None]), k=K) for row in contexts]
    for request in requests:
        request.model_spec.normalizer = normalizer
    with keeping_apart() as cpus, our_server(index, cpus) as address:
        ours = stub_of(address)
        reply = ours.TopK(requests[0])
        with echo_server(reply, cpus) as plain, echo_server(reply, cpus, "uvloop") as fast:
            stubs = {"echo": stub_of(plain), "logitsieve": ours, "echo on uvloop": stub_of(fast)}
            ways = {name: partial(stub.TopK, timeout=5) for name, stub in stubs.items()}
            runs = alternating(ways, requests, CALLS)
        compute = [ours.TopK(request).answer.compute_ns for request in requests]
    return {
        "us": {name: percentiles(found) for name, found in runs.items()},
        "ratios_p50": ratios(runs["logitsieve"], runs["echo"]),
        "ratios_on_uvloop_p50": ratios(runs["logitsieve"], runs["echo on uvloop"]),
        "server_compute_us_p50": statistics.median(compute) / 1000,
    }


def steps(index: Index, contexts: np.ndarray) -> list[dict[str, Any]]:
    """One row of TopK, and beam steps of 5 hypotheses for 1 and 32 sentences."""
    found = []
    with (
        keeping_apart() as cpus,
        our_server(index, cpus) as address,
        DecoderClient(address, timeout_s=60) as client,
        client.stream() as stream,
    ):
        decoders = {"in process": LocalDecoder(index), "unary": client, "stream": stream}
        for name, rows in STEP_ROWS:
            batches = [contexts[i : i + rows] for i in range(0, len(contexts) - rows + 1, rows)]
            ways = {way: partial(STEPS[name], decoder) for way, decoder in decoders.items()}
            runs = alternating(ways, batches, STEP_CALLS)
            us = {way: percentiles(each) for way, each in runs.items()}
            over = ratios(runs["stream"], runs["unary"])
            found.append({"step": name, "rows": rows, "us": us, "ratios_p50": over})
    return found


def alternating(
    ways: Mapping[str, Way], asked: Sequence[Any], calls: int
) -> dict[str, list[np.ndarray]]:
    """Microseconds of so many calls of each way in each run, after some that are not counted."""
    runs: dict[str, list[np.ndarray]] = {name: [] for name in ways}
    for _ in range(RUNS):
        for name, way in ways.items():
            taken = np.empty(calls)
            for number in range(-calls // 6, calls):
                request = asked[number % len(asked)]
                start = perf_counter_ns()
                way(request)
                taken[number] = (perf_counter_ns() - start) / 1000
            runs[name].append(taken)
    return runs


def percentiles(runs: list[np.ndarray]) -> dict[str, float]:
    """p50 and p99, the medians over the runs."""
    return {f"p{rank}": float(np.median(np.percentile(runs, rank, axis=1))) for rank in (50, 99)}


def ratios(ours: list[np.ndarray], others: list[np.ndarray]) -> list[float]:
    """Of the medians of each pair of runs."""
    return list(np.median(ours, axis=1) / np.median(others, axis=1))


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
    return DecoderStub(grpc.insecure_channel(address))


if __name__ == "__main__":
    main()
