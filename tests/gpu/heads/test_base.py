"""Heads on a GPU answer as the same heads on the host, bit for bit; arrays or tensors.

What any head must do is in tests/heads/test_contract.py, for these too.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from logitsieve.api.errors import InvalidRequest
from logitsieve.gpu.device import device_named
from logitsieve.gpu.heads import GPU_HEADS
from logitsieve.gpu.heads.base import LARGEST_BUCKET, GpuHead, Launch
from logitsieve.gpu.plans import empty_output
from logitsieve.index import HeadEntry, open_index, write_index
from tests.gpu.heads.opened import make_gpu_head, make_gpu_heads
from tests.synthetic import ARRAYS, make_head, make_hidden, make_softmax

SOFTMAX = make_softmax(400, 20)
EVERY_HEAD = pytest.mark.parametrize("name", GPU_HEADS)


def on_gpu(name: str) -> GpuHead:
    return make_gpu_head(name, SOFTMAX)


@EVERY_HEAD
@pytest.mark.parametrize(("rows", "k"), [(1, 5), (3, 1), (2, 64), (2, 400)])
def test_arrays_are_answered_as_on_the_host(name: str, rows: int, k: int) -> None:
    hidden = make_hidden(rows, 20)
    top, host = on_gpu(name).topk(hidden, k), make_head(name, SOFTMAX).topk(hidden, k)
    np.testing.assert_array_equal(top.ids, host.ids)
    np.testing.assert_array_equal(top.logits, host.logits)
    np.testing.assert_array_equal(top.exact, host.exact)
    assert [each.dtype for each in top] == [each.dtype for each in host]


def test_batches_are_answered_in_chunks() -> None:
    head, hidden = on_gpu("exact"), make_hidden(3, 20)
    output = empty_output(3, 1, torch.device("cpu"))
    head._find(Launch(("topk", 1), partial(head.plan, k=1), most=2), hidden, output)
    np.testing.assert_array_equal(output.ids, make_head("exact", SOFTMAX).topk(hidden, 1).ids)


@pytest.mark.exhaustive
def test_more_rows_than_the_largest_bucket() -> None:
    softmax, hidden = make_softmax(48, 4), make_hidden(LARGEST_BUCKET + 1, 4)
    top = make_gpu_head("exact", softmax).topk(hidden, 1)
    np.testing.assert_array_equal(top.ids, make_head("exact", softmax).topk(hidden, 1).ids)


@EVERY_HEAD
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_tensors_are_answered_in_tensors(name: str, dtype: torch.dtype) -> None:
    hidden = torch.from_numpy(make_hidden(3, 20)).to(device_named("cuda"), dtype)
    top = on_gpu(name).topk(hidden, 4)
    host = make_head(name, SOFTMAX).topk(hidden.float().cpu().numpy(), 4)
    for mine, theirs in zip(top[:3], host[:3], strict=True):
        assert isinstance(mine, torch.Tensor)
        np.testing.assert_array_equal(mine.cpu().numpy(), theirs)


@EVERY_HEAD
@pytest.mark.parametrize("k", [4, 400])
def test_a_tensors_bad_row_is_told_from_the_others(name: str, k: int) -> None:
    hidden = torch.from_numpy(make_hidden(3, 20)).to(device_named("cuda"))
    hidden[1, 2] = torch.nan
    head = on_gpu(name)
    top = head.topk(hidden, k)
    assert (top.ids[1] == -1).all()
    assert torch.from_numpy(np.isnan(np.asarray(top.logits.tolist())[1])).all()
    assert not top.exact[1]
    assert (top.ids[[0, 2]] >= 0).all()
    with pytest.raises(InvalidRequest, match=r"hidden\[1\]"):
        head.topk(hidden, k, check=True)


@pytest.mark.parametrize(
    ("proving", "fallback"),
    [("exact", ""), ("certified", ""), ("certified", "certified"), ("certified", "exact")],
)
def test_rows_that_a_screen_passes_on_are_proven(proving: str, fallback: str) -> None:
    hidden = make_hidden(6, 20)
    knobs: dict[str, dict[str, float]] = {"exact": {}, proving: {}, "screen": {"escalate": 0.3}}
    heads = make_gpu_heads(SOFTMAX, knobs, fallback)
    top, passed_on = heads["screen"].topk(hidden, 4), heads[fallback or proving].topk(hidden, 4)
    np.testing.assert_array_equal(top.scanned[top.exact], passed_on.scanned[top.exact])
    host = make_head("screen", SOFTMAX, escalate=0.3).topk(hidden, 4)
    assert 0 < top.exact.sum() < 6
    np.testing.assert_array_equal(top.ids, host.ids)
    np.testing.assert_array_equal(top.exact, host.exact)


@pytest.mark.parametrize(
    ("name", "knobs"),
    [
        ("screen", {"probes": 3}),
        ("screen", {"escalate": 0.9, "probes": 2}),
        ("svd", {"width": 3, "candidates": 40}),
        ("svd", {"candidates": 2}),
        ("frequency", {"n": 50}),
        ("frequency", {"n": 1_000_000}),
    ],
)
def test_operating_points_are_the_hosts(name: str, knobs: dict[str, float]) -> None:
    hidden = make_hidden(5, 20)
    head, host = on_gpu(name).with_knobs(**knobs), make_head(name, SOFTMAX).with_knobs(**knobs)
    assert head.knobs == host.knobs
    for mine, theirs in zip(head.topk(hidden, 3), host.topk(hidden, 3), strict=True):
        np.testing.assert_array_equal(mine, theirs)


@EVERY_HEAD
@pytest.mark.parametrize(
    ("hidden", "k", "field"),
    [
        (torch.zeros(2, 21), 2, "hidden"),
        (torch.zeros(0, 20), 2, "hidden"),
        (torch.zeros(2, 20, dtype=torch.int32), 2, "hidden"),
        (torch.zeros(2, 20), 0, "k"),
    ],
)
def test_wrong_tensors_are_refused(name: str, hidden: torch.Tensor, k: int, field: str) -> None:
    with pytest.raises(InvalidRequest, match=field):
        on_gpu(name).topk(hidden.to(device_named("cuda")), k)


def test_an_index_opens_on_a_gpu(tmp_path: Path) -> None:
    heads = {"exact": HeadEntry(), "lsh": HeadEntry("lsh")}
    path = write_index(
        tmp_path / "lm" / "1", softmax=SOFTMAX, parts={"lsh": ARRAYS["lsh"](SOFTMAX)},
        heads=heads, default_head="exact",
    )  # fmt: skip
    hidden = make_hidden(2, 20)
    with open_index(path, device="cuda") as index, open_index(path) as host:
        assert index.heads == ("exact",)
        np.testing.assert_array_equal(
            index.head().topk(hidden, 5).ids, host.head().topk(hidden, 5).ids
        )
        with pytest.raises(InvalidRequest, match=r"exact \(on cuda\)"):
            index.head("lsh")


def test_named_logits_of_tensors(tmp_path: Path) -> None:
    path = tmp_path / "lm" / "1"
    heads = {"exact": HeadEntry()}
    write_index(path, softmax=SOFTMAX, parts={}, heads=heads, default_head="exact")
    hidden, ids = make_hidden(2, 20), np.array([[3, 399, 7], [0, 1, 2]])
    with open_index(path, device="cuda") as index:
        there = torch.from_numpy(hidden).to(device_named("cuda"))
        asked = torch.from_numpy(ids).to(there.device)
        found = index.logits(there, asked)
        assert isinstance(found, torch.Tensor)
        np.testing.assert_array_equal(found.cpu().numpy(), index.logits(hidden, ids))
        asked[1, 1] = 400
        assert index.logits(there, asked)[1].tolist()[1] == -np.inf
        with pytest.raises(InvalidRequest, match="ids"):
            index.logits(there, asked[:1])


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "CUDA", ""])
def test_unknown_devices_are_refused(device: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="device"):
        open_index(tmp_path / "lm" / "1", device=device)
