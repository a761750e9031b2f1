"""HAProxy before a server: who floods loses its own calls alone."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socket import create_connection
from threading import Thread
from time import monotonic

import numpy as np
import pytest

from logitsieve.api.errors import Unauthenticated
from logitsieve.client import DecoderClient, Tls
from tests.deploy.charts import CHART
from tests.server.materials import authority, signed_by, write_api_keys
from tests.server.running import WAIT_S, lasting_port, started, write_model
from tests.server.test_flood import FLOODS, flood
from tests.server.test_memory import memory_mb

CONFIG = CHART / "haproxy.cfg"
PROXY = shutil.which("haproxy")
FLOOD_S = 3.0
MOST_MB = 100
OTHER = "127.0.0.2"
# The one that a server without a proxy gives the most memory.
COSTLIEST = "within the limit, again and again"

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(PROXY is None, reason="needs haproxy (apt-get install haproxy)"),
]


@contextmanager
def proxy(server: int, **more: str) -> Iterator[int]:
    port = lasting_port()
    where = {"BIND": f"127.0.0.1:{port}", "SERVER": f"127.0.0.1:{server}"}
    assert PROXY is not None
    with subprocess.Popen([PROXY, "-db", "-f", str(CONFIG)], env=where | more) as running:
        try:
            while True:
                with suppress(ConnectionRefusedError), create_connection(("127.0.0.1", port)):
                    break
            yield port
        finally:
            running.kill()


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(each, marks=() if each == COSTLIEST else pytest.mark.exhaustive)
        for each in FLOODS
    ],
)
def test_others_lose_no_call_and_the_server_takes_little_memory(kind: str, tmp_path: Path) -> None:
    write_model(tmp_path / "models")
    hidden_states = np.ones((1, 24), np.float32)
    with (
        started(tmp_path / "models") as server,
        proxy(server.port) as port,
        DecoderClient(f"127.0.0.1:{port}", timeout_s=WAIT_S) as client,
    ):
        client.topk(hidden_states, k=1)
        before = memory_mb(server.process.pid)["VmRSS"]
        args = port, monotonic() + FLOOD_S, *FLOODS[kind], OTHER
        flooding = [Thread(target=flood, args=args) for _ in range(4)]
        for each in flooding:
            each.start()
        while any(each.is_alive() for each in flooding):
            client.topk(hidden_states, k=1)
        more = memory_mb(server.process.pid)["VmHWM"] - before
        print(f"\n{kind}: {more:.0f} MiB more")
        assert more < MOST_MB
        with DecoderClient(f"127.0.0.1:{port}", timeout_s=WAIT_S) as another:
            another.topk(hidden_states, k=1)


def test_tls_ends_in_the_proxy_and_begins_anew_and_tokens_pass(tmp_path: Path) -> None:
    write_model(tmp_path / "models")
    ours = authority()
    cert, key = signed_by(ours).write(tmp_path)  # tls.crt and tls.key, as in a Secret
    api_key = "t" * 20
    api_keys = write_api_keys(tmp_path, f"read:{api_key}")
    tls = Tls(ca=ours.write(tmp_path, "ca")[0])
    with (
        started(tmp_path / "models", tls_cert=cert, tls_key=key, api_key_file=api_keys) as server,
        proxy(server.port, TLS=str(cert), SERVER_TLS="1") as port,
    ):
        where = f"127.0.0.1:{port}"
        with DecoderClient(where, timeout_s=WAIT_S, tls=tls, api_key=api_key) as client:
            assert client.topk(np.ones((1, 24), np.float32), k=1).ids.shape == (1, 1)
        with (
            DecoderClient(where, timeout_s=WAIT_S, tls=tls, api_key=api_key[1:] + "u") as other,
            pytest.raises(Unauthenticated),
        ):
            other.topk(np.ones((1, 24), np.float32), k=1)
