"""The same call in process and over the wire, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from logitsieve.types.decoder import Decoder
from logitsieve.types.errors import InvalidRequest
from logitsieve.types.results import TopKReply
from tests.server.running import Running
from tests.synthetic import make_hidden


@pytest.fixture(scope="module")
def local(models: Path, kernel_cache: Path) -> LocalDecoder:
    return LocalDecoder(open_index(models / "demo" / "1", kernel_cache=kernel_cache))


def assert_same(one: TopKReply, other: TopKReply) -> None:
    for name in ("ids", "logits"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))
        assert getattr(one, name).dtype == getattr(other, name).dtype
    for name in ("exact", "scanned", "fallback", "log_z"):
        mine, theirs = getattr(one.answer, name), getattr(other.answer, name)
        np.testing.assert_array_equal(mine, theirs)
        assert np.asarray(mine).dtype == np.asarray(theirs).dtype
    for name in ("model", "version", "digest", "head", "knobs", "normalizer"):
        assert getattr(one.answer, name) == getattr(other.answer, name)


@pytest.mark.parametrize("rows", [1, 3, 200])
@pytest.mark.parametrize("k", [1, 5, 128])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"head": "exact"},
        {"head": "screen", "knobs": {"probes": 3}},
        {"knobs": {"probes": 2}},
        {"head": "AUTO"},
        {"min_precision": 0.5},
        {"exact": True, "head": "AUTO"},
        {"normalizer": "candidates"},
        {"normalizer": "exact", "head": "screen"},
    ],
    ids=str,
)
def test_topk(
    server: Running, local: LocalDecoder, rows: int, k: int, options: dict[str, Any]
) -> None:
    hidden = make_hidden(rows)
    remote: Decoder = server.client
    assert_same(remote.topk(hidden, k, model="demo", **options), local.topk(hidden, k, **options))


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(("rows", "k"), [(1, 1), (10, 5), (64, 10), (2, 11)])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"head": "AUTO", "normalizer": "candidates"},
        {"min_precision": 0.9},
        {"min_precision": np.float32(0.95)},
        {"min_precision": 1},
        {"exact": True},
        {"knobs": {"probes": 2}},
    ],
    ids=str,
)
def test_auto(
    measured: Running,
    measured_models: Path,
    kernel_cache: Path,
    version: int,
    rows: int,
    k: int,
    options: dict[str, Any],
) -> None:
    index = open_index(measured_models / "demo" / str(version), kernel_cache=kernel_cache)
    mine = LocalDecoder(index).topk(make_hidden(rows), k, **options)
    theirs = measured.client.topk(make_hidden(rows), k, model=f"demo@{version}", **options)
    assert_same(theirs, mine)
    if options.keys() & {"min_precision", "exact"} and k == 11:
        assert mine.answer.exact.all()


@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64, ml_dtypes.bfloat16], ids=str)
def test_dtypes(server: Running, local: LocalDecoder, dtype: Any) -> None:
    hidden = make_hidden(4).astype(dtype)
    assert_same(server.client.topk(hidden, 3, model="demo"), local.topk(hidden, 3))


def test_torch_lists_views_and_single_rows(server: Running, local: LocalDecoder) -> None:
    torch = pytest.importorskip("torch")
    hidden = make_hidden(4)
    tensor = torch.from_numpy(hidden)
    for form in (
        tensor,
        tensor.bfloat16(),
        tensor.half(),
        tensor.T.contiguous().T,
        hidden.tolist(),
        np.asfortranarray(hidden),
        hidden[::2],
        hidden[0],
    ):
        assert_same(server.client.topk(form, 3, model="demo"), local.topk(form, 3))


def test_the_caller_owns_the_arrays(server: Running) -> None:
    reply = server.client.topk(make_hidden(2), 3, model="demo")
    for array in (reply.ids, reply.logits, reply.answer.exact, reply.answer.scanned):
        array[:] = 0
    assert reply.answer.compute_ns > 0
    assert reply.answer.queue_ns > 0


@pytest.mark.parametrize(
    ("hidden", "k", "options"),
    [
        (np.zeros((2, 23), np.float32), 1, {}),
        (np.full((2, 24), np.nan, np.float32), 1, {}),
        (np.array([[0.0] * 23 + [np.inf]]), 1, {}),
        (np.full((1, 24), 1e39), 1, {}),
        (np.zeros((0, 24), np.float32), 1, {}),
        (np.zeros((2, 0), np.float32), 1, {}),
        (np.zeros((1, 2, 24), np.float32), 1, {}),
        (np.zeros((1, 24), np.int32), 1, {}),
        (np.zeros((1, 24), bool), 1, {}),
        ([[1.0], [1.0, 2.0]], 1, {}),
        ("text", 1, {}),
        (None, 1, {}),
        (make_hidden(1), 0, {}),
        (make_hidden(1), -1, {}),
        (make_hidden(1), True, {}),
        (make_hidden(1), 1.0, {}),
        (make_hidden(1), 301, {}),
        (make_hidden(1), 1 << 40, {}),
        (make_hidden(1), 1, {"head": "svd"}),
        (make_hidden(1), 1, {"knobs": {"speed": 3}}),
        (make_hidden(1), 1, {"knobs": {"probes": 0.5}}),
        (make_hidden(1), 1, {"knobs": {"probes": float("nan")}}),
        (make_hidden(1), 1, {"knobs": {"self": 1}}),
        (make_hidden(1), 0, {"min_precision": 0.9}),
        (make_hidden(1), 301, {"exact": True}),
        (make_hidden(1), 1, {"min_precision": 0}),
        (make_hidden(1), 1, {"min_precision": 1.5}),
        (make_hidden(1), 1, {"min_precision": float("nan")}),
        (make_hidden(1), 1, {"min_precision": True}),
        (make_hidden(1), 1, {"min_precision": "high"}),
        (make_hidden(1), 1, {"min_precision": 0.9, "exact": True}),
        (make_hidden(1), 1, {"min_precision": 0.9, "head": "screen"}),
        (make_hidden(1), 1, {"min_precision": 0.9, "knobs": {"probes": 1}}),
        (make_hidden(1), 1, {"exact": 1}),
        (make_hidden(1), 1, {"exact": True, "head": "exact"}),
        (make_hidden(1), 1, {"head": "AUTO", "knobs": {"probes": 1}}),
        (make_hidden(1), 1, {"head": "auto"}),
        (make_hidden(1), 1, {"normalizer": "lowrank"}),
        (make_hidden(1), 1, {"normalizer": "none"}),
    ],
)
def test_refusals_name_the_same_field(
    server: Running, local: LocalDecoder, hidden: Any, k: Any, options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequest) as in_process:
        local.topk(hidden, k, **options)
    with pytest.raises(InvalidRequest) as remote:
        server.client.topk(hidden, k, model="demo", **options)
    assert type(remote.value) is type(in_process.value)
    assert remote.value.field == in_process.value.field
    assert server.client.topk(make_hidden(1), 1, model="demo").ids.shape == (1, 1)
