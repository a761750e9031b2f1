"""Many clients of one TopK server in a closed loop; benchmarks/load/wire.py does the rest.

A process of its own, so that it can be kept to its own cores: `python -m benchmarks.load.clients`
reads one Plan as JSON from stdin and writes one Result as JSON to stdout.
"""

import asyncio
import json
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, TypeAlias

import grpc
import numpy as np

from logitsieve.utils.wire_tensors import put
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.decoder_pb2_grpc import DecoderStub

CHANNELS = 4
REQUESTS = 64  # different ones, sent in turn
LOCAL = "REFUSED_BY_CLIENT"
Result: TypeAlias = dict[str, Any]  # outcomes within the measured time; latencies in microseconds


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Request, address and duration of one measurement."""

    address: str
    contexts: str  # .npy [N, D]
    rows: int
    k: int = 5
    head: str = ""
    alone: bool = False  # with a constraint that changes nothing: such requests share no batch
    clients: int = 1  # of a closed loop
    per_s: float = 0.0  # calls a second of an open loop (wire.py); 0: a closed one
    throttled: bool = False  # held back like our client's calls (wire.py)
    seconds: float = 5.0
    warm_s: float = 1.0
    timeout_s: float = 5.0
    cpus: list[int] = field(default_factory=list)


async def run(plan: Plan) -> Result:
    """Warm up, then count; each client sends its next call when it has the answer to the last."""
    # A connection each, and no retries: what is refused is to be seen.
    options = [("grpc.enable_retries", 0), ("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(plan.address, options) for _ in range(CHANNELS)]
    stubs = [DecoderStub(channel) for channel in channels]
    messages = list(map(pb.TopKRequest.FromString, requests(plan)))
    first = perf_counter() + plan.warm_s
    last, taken = first + plan.seconds, defaultdict[str, list[float]](list)

    async def client(number: int) -> None:
        while (start := perf_counter()) < last:
            code, message = "OK", messages[number % REQUESTS]
            try:
                await stubs[number % CHANNELS].TopK(message, timeout=plan.timeout_s)
            except grpc.aio.AioRpcError as failure:
                code = _code(failure)
            end = perf_counter()
            if first <= end < last:
                taken[code].append((end - start) * 1e6)
            number += 1

    await asyncio.gather(*(client(7 * number) for number in range(plan.clients)))
    for channel in channels:
        await channel.close()
    return result_of(plan, taken)


def result_of(plan: Plan, taken: Mapping[str, list[float]]) -> Result:
    codes = {code: len(each) for code, each in taken.items() if each}
    refused = [*taken.get("RESOURCE_EXHAUSTED", ()), *taken.get(LOCAL, ())]
    return {
        "seconds": plan.seconds,
        "codes": codes,
        "good_per_s": codes.get("OK", 0) / plan.seconds,
        "us": ranks(taken.get("OK", [])),
        "refused_us": ranks(refused),  # of the server, and of calls held back in the client
    }


def ranks(taken: list[float]) -> dict[str, float]:
    return {f"p{rank:g}": float(np.percentile(taken or [0.0], rank)) for rank in (50, 99, 99.9)}


def _code(failure: grpc.aio.AioRpcError) -> str:
    """Name of the status code; a refusal by the queue must carry a retry pushback."""
    name: str = failure.code().name
    retry = any(key == "grpc-retry-pushback-ms" for key, _ in failure.trailing_metadata() or ())
    return name if name != "RESOURCE_EXHAUSTED" or retry else f"{name} without pushback"


def requests(plan: Plan) -> list[bytes]:
    """Return different requests, serialized."""
    contexts: Any = np.load(plan.contexts, mmap_mode="r")
    starts = [number * plan.rows % (len(contexts) - plan.rows) for number in range(REQUESTS)]
    made = []
    for start in starts:
        hidden_states = np.asarray(contexts[start : start + plan.rows], np.float32)
        request = pb.TopKRequest(hidden_states=put(pb.Tensor(), hidden_states), k=plan.k)
        if plan.head:
            request.model_spec.head.name = plan.head
        if plan.alone:
            request.constraints.SetInParent()
        made.append(request.SerializeToString())
    return made


def answer(measure: Callable[[Plan], Result]) -> None:
    plan = Plan(**json.load(sys.stdin))
    if plan.cpus:
        os.sched_setaffinity(0, plan.cpus)
    json.dump(measure(plan), sys.stdout)


if __name__ == "__main__":
    answer(lambda plan: asyncio.run(run(plan)))
