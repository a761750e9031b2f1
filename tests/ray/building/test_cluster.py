"""Addresses of clusters, and the commands on one."""

import socket
import subprocess
import sys
from collections.abc import Sequence
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
SOURCE = """
import torch
from torch import nn

def load():
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Embedding(50, 8), nn.Tanh(), nn.Linear(8, 50))
    return model, [torch.randint(50, (3, 4)) for _ in range(6)]
"""


@pytest.fixture
def address(cluster: None) -> str:
    """The address of the cluster of four CPUs that this process is connected to."""
    import ray

    return str(ray.get_runtime_context().gcs_address)


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


def run_twice(address: str, folder: Path, command: str, outs: Sequence[str], *options: str) -> None:
    """Run a command on the cluster, and then alone."""
    program = Path(sys.executable).with_name("logitsieve")
    for out, more in zip(outs, (["--ray", address], []), strict=True):
        done = subprocess.run(
            [program, command, *options, "--out", out, *more],
            cwd=folder, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


def test_the_command_builds_on_a_cluster(address: str, tmp_path: Path) -> None:
    softmax = make_softmax(vocab_size=300, dim=16)
    np.savez(tmp_path / "lm.npz", W=softmax.weight, b=softmax.bias)
    np.save(tmp_path / "H.npy", make_contexts(3000))
    inputs = ("--weight", "lm.npz:W", "--bias", "lm.npz:b", "--contexts", "H.npy")
    quick = ("--reproducible", "--clusters", "4", "--rounds", "1", "--steps", "3")
    outs = "lm/1", "lm/2"
    run_twice(address, tmp_path, "build", outs, *inputs, *quick)
    many, one = (open_index(tmp_path / out) for out in outs)
    assert many.digest == one.digest


def test_the_command_captures_on_a_cluster(address: str, tmp_path: Path) -> None:
    (tmp_path / "source.py").write_text(SOURCE)
    outs = "many", "one"
    run_twice(
        address, tmp_path, "capture", outs, "--module", "source.py:load", "--dtype", "float32"
    )
    many, one = (
        {file.name: file.read_bytes() for file in (tmp_path / out).iterdir()} for out in outs
    )
    assert many == one
    assert {"00000.npy", "weight.npy", "capture.json"} < many.keys()
