"""Addresses of clusters, and the command on one."""

import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.index import open_index
from tests.index_builder.clustered import make_contexts
from tests.synthetic import make_softmax

pytest.importorskip("ray", reason="ray is not installed: pip install '.[ray]'")
from logitsieve.ray.building import connected

pytestmark = pytest.mark.ray


@pytest.mark.parametrize("address", ["", "node", "node:", ":6379", "node:port", "node:70000"])
def test_what_is_no_address_is_refused(address: str) -> None:
    allowed = r"ray: got .*, allowed: auto .*HOST:PORT .* or local"
    with pytest.raises(InvalidRequest, match=allowed), connected(address):
        pass


def test_an_address_where_nothing_listens_is_named_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        address = f"127.0.0.1:{port}"
        with pytest.raises(InvalidRequest, match=f"ray: got {address} "), connected(address):
            pass


def test_an_executor_without_a_connection_is_refused() -> None:
    script = (
        "from logitsieve.ray.building import RayExecutor\n"
        "try: RayExecutor()\n"
        "except ValueError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert "ray: got no connection" in done.stdout


def test_the_command_builds_on_a_cluster(address: str, tmp_path: Path) -> None:
    softmax = make_softmax(vocab_size=300, dim=16)
    np.savez(tmp_path / "lm.npz", W=softmax.weight, b=softmax.bias)
    np.save(tmp_path / "H.npy", make_contexts(3000))
    built = []
    for number, more in enumerate([["--ray", address], []], start=1):
        out = tmp_path / "models" / "lm" / str(number)
        options = (
            *("--weight", f"{tmp_path}/lm.npz:W", "--bias", f"{tmp_path}/lm.npz:b"),
            *("--contexts", str(tmp_path / "H.npy"), "--out", str(out), "--reproducible"),
            *("--clusters", "4", "--rounds", "1", "--steps", "3"),
        )
        program = Path(sys.executable).with_name("logitsieve")
        done = subprocess.run(
            [program, "build", *options, *more], capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        built.append(open_index(out))
    assert built[0].digest == built[1].digest
