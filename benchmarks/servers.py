"""Servers in processes of their own: `logitsieve serve`, and an echo on the same stack.

`python -m benchmarks.servers asyncio REPLY`, or uvloop, is the echo; it prints its port.
"""

import asyncio
import base64
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import grpc
import uvloop

from logitsieve.cli.serve import EXPERIMENTS
from logitsieve.index import Index
from logitsieve.v1 import decoder_pb2 as pb


@contextmanager
def our_server(index: Index, cpus: list[int], **options: Any) -> Iterator[str]:
    """The gRPC address of a `logitsieve serve` of an index, kept to these cores."""
    command = [
        sys.executable,
        "-m",
        "logitsieve",
        "serve",
        "--model-repository",
        str(index.path.parents[1]),
    ]
    for name, value in ({"port": 0, "http_port": 0} | options).items():
        command += ["--" + name.replace("_", "-"), str(value)]
    with kept_to(cpus, [*command, "--no-admin"], "stderr") as lines:
        for line in lines:
            if "gRPC at " in line:
                yield line.partition("gRPC at ")[2].split(",")[0]
                return
    raise RuntimeError("the server did not start")


@contextmanager
def echo_server(reply: pb.TopKResponse, cpus: list[int], loop: str = "asyncio") -> Iterator[str]:
    """The address of a server that answers all by this reply; on uvloop set up like ours."""
    prepared = base64.b64encode(reply.SerializeToString()).decode()
    command = ["env", f"GRPC_EXPERIMENTS={EXPERIMENTS * (loop == 'uvloop')}", sys.executable]
    command += ["-m", "benchmarks.servers", loop, prepared]
    with kept_to(cpus, command, "stdout") as lines:
        yield f"127.0.0.1:{next(lines).strip()}"


@contextmanager
def kept_to(cpus: list[int], command: list[str], stream: str) -> Iterator[Iterator[str]]:
    """The lines of a process's stream; it is stopped at the end."""
    pipes: dict[str, Any] = {stream: subprocess.PIPE}
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, text=True, env=environment, **pipes) as process:
        try:
            os.sched_setaffinity(process.pid, cpus)
            yield iter(getattr(process, stream))
        finally:
            process.terminate()
            process.wait()


async def echo(reply: bytes) -> None:
    """Parse each TopK request, and answer all with one reply."""
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


if __name__ == "__main__":
    run = {"asyncio": asyncio.run, "uvloop": uvloop.run}[sys.argv[1]]
    run(echo(base64.b64decode(sys.argv[2])))
