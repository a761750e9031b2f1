from __future__ import annotations

import subprocess
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from logitsieve.api.decoder import Decoder
from logitsieve.api.errors import InvalidRequest
from logitsieve.client import DecoderClient
from logitsieve.utils.hidden import as_hidden, as_wire
from logitsieve.utils.wire_tensors import put
from logitsieve.v1 import decoder_pb2 as pb


def test_it_is_a_decoder() -> None:
    with DecoderClient("127.0.0.1:1") as client:
        as_protocol: Decoder = client
        assert as_protocol is client


@pytest.mark.parametrize(
    "timeout_s", [-1, 0, float("nan"), float("inf"), 1e12, 3601, True, "5", None]
)
def test_a_timeout_is_a_positive_number_of_seconds(timeout_s: Any) -> None:
    with pytest.raises(InvalidRequest, match="at most 3600") as caught:
        DecoderClient("127.0.0.1:1", timeout_s=timeout_s)
    assert caught.value.field == "timeout_s"


@pytest.mark.parametrize("timeout_s", [0.01, 3600, np.float32(2)])
def test_a_timeout_of_any_real_type(timeout_s: Any) -> None:
    with DecoderClient("127.0.0.1:1", timeout_s=timeout_s) as client:
        assert client.timeout_s == pytest.approx(float(timeout_s))


def test_importing_it_loads_only_the_base() -> None:
    script = "import sys, logitsieve.client; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    heavy = {"numba", "torch", "faiss", "safetensors", "prometheus_client", "logitsieve.kernels"}
    assert not heavy & set(run.stdout.split())


@pytest.mark.parametrize(
    ("dtype", "code", "size"),
    [
        (np.float32, pb.DTYPE_FLOAT32, 4),
        (np.float64, pb.DTYPE_FLOAT32, 4),
        (np.float16, pb.DTYPE_FLOAT16, 2),
        (ml_dtypes.bfloat16, pb.DTYPE_BFLOAT16, 2),
        (np.uint16, pb.DTYPE_BFLOAT16, 2),
    ],
)
def test_half_sized_values_stay_half_sized(dtype: Any, code: int, size: int) -> None:
    hidden = np.arange(6).reshape(2, 3).astype(dtype)
    for form in (hidden, np.asfortranarray(hidden)):
        tensor = put(pb.Tensor(), as_wire(form))
        assert (tensor.dtype, tensor.rows, tensor.cols) == (code, 2, 3)
        assert len(tensor.data) == 6 * size
        np.testing.assert_array_equal(as_hidden(as_wire(form)), as_hidden(form))


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"k": -1}, "k"),
        ({"k": 1 << 32}, "k"),
        ({"k": True}, "k"),
        ({"k": "1"}, "k"),
        ({"hidden": []}, "hidden"),
        ({"hidden": "text"}, "hidden"),
        ({"knobs": {"probes": "many"}}, "knobs"),
        ({"normalizer": "none"}, "normalizer"),
    ],
)
def test_what_cannot_be_sent_is_refused_here(arguments: dict[str, Any], field: str) -> None:
    given = {"hidden": np.zeros((1, 2)), "k": 1, **arguments}
    with DecoderClient("127.0.0.1:1") as client, pytest.raises(InvalidRequest) as caught:
        client.topk(**given)
    assert caught.value.field == field
