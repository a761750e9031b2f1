"""Peak memory of a server under callers that all are at every limit at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Barrier, Event
from typing import Any

import grpc
import numpy as np
import pytest

from logitsieve.server import ServeConfig
from logitsieve.utils.wire_tensors import put
from logitsieve.v1 import decoder_pb2 as pb
from tests.server.materials import write_api_keys
from tests.server.messages import RawStream
from tests.server.running import WAIT_S, started
from tests.synthetic import make_hidden, make_softmax, write_heads

pytestmark = pytest.mark.system

CALLERS = 60
D = 1024
# So that rows make a request long.
SMALL: dict[str, Any] = {"max_k": 1, "max_samples": 1, "max_constraint_ids": 0}
OPTIONS: dict[str, Any] = {"request_memory_mib": 256, "max_streams": CALLERS, **SMALL}
KEY = "token-of-a-caller"
TOP_K, CHECK = "/logitsieve.v1.Decoder/TopK", "/grpc.health.v1.Health/Check"
OWN_MB = 200  # of connections, and of what gRPC and the C library keep


def memory_mb(process: int) -> dict[str, float]:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return {name: int(rest.split()[0]) / 1024 for name, _, rest in (x.partition(":") for x in lines)
            if name in ("VmRSS", "VmHWM")}  # fmt: skip


@pytest.mark.parametrize("api_keys", [False, pytest.param(True, marks=pytest.mark.exhaustive)])
def test_callers_at_every_limit_keep_within_the_bound(tmp_path: Path, api_keys: bool) -> None:
    """Beside calls without a message, and health checks as long as the port takes them."""
    options = dict(OPTIONS)
    headers: list[tuple[str, str]] = []
    if api_keys:
        options["api_key_file"] = write_api_keys(tmp_path, f"read:{KEY}\n")
        headers.append(("authorization", f"Bearer {KEY}"))
    write_heads(tmp_path / "models" / "demo" / "1", make_softmax(dim=D))
    limits = ServeConfig(**SMALL)
    longest = limits.max_message_bytes(D)
    hidden_states = make_hidden(limits.max_rows, D)
    good = pb.TopKRequest(hidden_states=put(pb.Tensor(), hidden_states), k=1)
    spoiled = pb.TopKRequest(
        hidden_states=put(pb.Tensor(), np.full_like(hidden_states, np.nan)), k=1
    )
    longest_garbage = b"\xff" * longest
    sent = [good.SerializeToString(), spoiled.SerializeToString(), longest_garbage]
    assert len(sent[0]) > 0.9 * longest
    together, never = Barrier(CALLERS), Event()

    def silent() -> Iterator[bytes]:
        never.wait(WAIT_S)
        yield from ()

    with (
        started(tmp_path / "models", **options) as server,
        ExitStack() as stack,
        ThreadPoolExecutor(CALLERS) as pool,
    ):

        def call(number: int) -> list[str]:
            options = [("grpc.use_local_subchannel_pool", 1), ("grpc.enable_retries", 0)]
            options.append(("grpc.max_receive_message_length", -1))
            channel = stack.enter_context(grpc.insecure_channel(server.address, options))
            together.wait(WAIT_S)
            half_open: Any = [
                channel.stream_unary(method).future(silent(), metadata=headers)
                for method in (TOP_K, CHECK)
            ]
            checks: Any = channel.unary_unary(CHECK)
            check = checks.future(longest_garbage, timeout=WAIT_S)
            stream = RawStream(channel, headers=headers)
            stream.send(pb.DecodeRequest(id=1, top_k=good))
            codes = []
            for turn in range(len(sent)):
                request = sent[(number + turn) % len(sent)]
                top_k: Any = channel.unary_unary(TOP_K)
                asked = top_k.future(request, timeout=WAIT_S, metadata=headers)
                codes.append(asked.code().name)
            codes.append("stream " + (stream.receive().error.message[:9] or "OK"))
            stream.half_close()
            codes.append(f"check {check.code().name}")
            for call in half_open:
                call.cancel()
            return codes

        before = memory_mb(server.process.pid)
        codes = Counter(code for each in pool.map(call, range(CALLERS)) for code in each)
        never.set()
        after = memory_mb(server.process.pid)
    most = before["VmRSS"] + OPTIONS["request_memory_mib"] + CALLERS * longest / 2**20 + OWN_MB
    print(f"\n{before} -> {after}, at most {most:.0f}; {codes}")
    assert codes["INVALID_ARGUMENT"] >= CALLERS
    assert codes["OK"]
    assert codes["stream OK"]
    assert codes["check OK"] == 0
    assert after["VmHWM"] <= most
