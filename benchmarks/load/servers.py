"""Processes under load: the server with its options, an echo on the same stack, the clients."""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from benchmarks.load.clients import Plan, Result
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
    command += ["-m", "benchmarks.load.echo", loop, prepared]
    with kept_to(cpus, command, "stdout") as lines:
        yield f"127.0.0.1:{next(lines).strip()}"


def load(plan: Plan, clients: str = "clients") -> Result:
    """Result of clients in a process of their own, by gRPC or by plain HTTP/2 ("wire")."""
    command = [sys.executable, "-m", f"benchmarks.load.{clients}"]
    asked = json.dumps(asdict(plan))
    run = subprocess.run(command, input=asked, stdout=subprocess.PIPE, text=True, check=True)
    result: Result = json.loads(run.stdout)
    return result


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
