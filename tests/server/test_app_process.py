"""The server as a process: it starts, says where, and leaves quietly."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from logitsieve.client import DecoderClient
from tests.server.running import WAIT_S, write_model
from tests.synthetic import make_hidden

SCRIPT = """
import sys
from pathlib import Path
from logitsieve.server import ServeConfig, serve
models, cache, port = sys.argv[1:]
ports = {"port": int(port), "metrics_port": 0, "admin_port": 0}
serve(ServeConfig(models=Path(models), kernel_cache=Path(cache), **ports))
"""


@contextmanager
def process(models: Path, cache: Path, port: int = 0) -> Iterator[subprocess.Popen[str]]:
    arguments = [sys.executable, "-c", SCRIPT, str(models), str(cache), str(port)]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True) as server:
        try:
            yield server
        finally:
            server.kill()


def where(server: subprocess.Popen[str]) -> tuple[str, str]:
    assert server.stderr is not None
    said = []
    for line in server.stderr:
        said.append(line)
        if found := re.match(r"gRPC at (\S+), metrics at ([^\s,]+)", line):
            return found[1], found[2]
    raise AssertionError("".join(said))


@pytest.mark.system
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_it_leaves_with_0_when_told(
    tmp_path: Path, kernel_cache: Path, sent: signal.Signals
) -> None:
    write_model(tmp_path)
    with process(tmp_path, kernel_cache) as server:
        address, metrics = where(server)
        with DecoderClient(address, timeout_s=WAIT_S) as client:
            assert client.topk(make_hidden(1), 3).ids.shape == (1, 3)
            with urllib.request.urlopen(metrics, timeout=WAIT_S) as page:
                assert b'head="screen",model="demo",version="1"} 1.0' in page.read()
            server.send_signal(sent)
            rest = server.communicate(timeout=WAIT_S)[1]
    assert server.returncode == 0
    assert rest == "stopping: 10 s for what is in flight\nstopped\n"


@pytest.mark.system
def test_a_taken_port_is_said_in_one_line(tmp_path: Path, kernel_cache: Path) -> None:
    write_model(tmp_path)
    with process(tmp_path, kernel_cache) as first:
        address = where(first)[0]
        with process(tmp_path, kernel_cache, int(address.rpartition(":")[2])) as second:
            said = second.communicate(timeout=WAIT_S)[1]
        assert second.returncode == 1
        assert f"InvalidRequest: port: got {address}, which is in use" in said.splitlines()[-1]
        assert "add_port.cc" not in said
