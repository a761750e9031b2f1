"""Servers in processes of their own, which can be told to stop, killed, and limited."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from tests.server.running import WAIT_S

SERVER = """
import json, resource, sys
from pathlib import Path
from logitsieve.server import ServeConfig, serve
options, files = json.loads(sys.argv[1]), int(sys.argv[2])
if files:
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))
paths = ("models", "kernel_cache", "tls_cert", "tls_key", "tokens")
options |= {name: Path(options[name]) for name in paths if name in options}
serve(ServeConfig(**options))
"""


class Started(NamedTuple):
    """A server process, and where it listens."""

    process: subprocess.Popen[str]
    address: str
    metrics: str

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def has_left(self) -> bool:
        return self.process.poll() is not None

    def page(self) -> str:
        with urllib.request.urlopen(self.metrics, timeout=WAIT_S) as page:
            return str(page.read().decode())

    def has_answered(self) -> bool:
        return re.search(r"logitsieve_rows_total\{[^}]*\} [1-9]", self.page()) is not None


@contextmanager
def started(
    models: Path,
    cache: Path,
    *,
    files: int = 0,
    environment: Mapping[str, str] | None = None,
    **options: Any,
) -> Iterator[Started]:
    """One that answers; `files` are the descriptors that it may have, where not 0."""
    given = {"port": 0, "metrics_port": 0, "admin": False, "models": models, "kernel_cache": cache}
    written = json.dumps(given | options, default=str)
    command = [sys.executable, "-c", SERVER, written, str(files)]
    env = os.environ | dict(environment or {})
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=env) as process:
        try:
            assert process.stderr is not None
            said = []
            for line in process.stderr:
                said.append(line)
                if found := re.search(r"gRPC at ([^\s,]+), metrics at ([^\s\",]+)", line):
                    break
            else:
                raise AssertionError("".join(said))
            yield Started(process, found[1], found[2])
        finally:
            process.kill()
