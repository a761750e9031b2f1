from __future__ import annotations

import subprocess
import sys

import pytest

from logitsieve.api.decoder import Decoder
from logitsieve.api.errors import InvalidRequest
from logitsieve.client import DecoderClient


def test_it_is_a_decoder() -> None:
    with DecoderClient("127.0.0.1:1") as client:
        as_protocol: Decoder = client
        assert as_protocol is client


def test_importing_it_loads_only_the_base() -> None:
    script = "import sys, logitsieve.client; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    heavy = {"numba", "torch", "faiss", "safetensors", "prometheus_client", "logitsieve.kernels"}
    assert not heavy & set(run.stdout.split())


@pytest.mark.parametrize("keepalive_s", [0, 9.9, -1, float("nan")])
def test_a_keepalive_that_servers_would_not_take(keepalive_s: float) -> None:
    with pytest.raises(InvalidRequest) as caught:
        DecoderClient("127.0.0.1:1", keepalive_s=keepalive_s)
    assert caught.value.field == "keepalive_s"
