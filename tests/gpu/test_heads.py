"""Heads on a GPU answer as the same heads on the host, bit for bit; arrays or tensors.

What any head must do is in tests/heads/test_contract.py, for these too.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from logitsieve.api.errors import InvalidRequest
from logitsieve.gpu.gpu_engine import GpuBackend
from logitsieve.gpu.heads import GPU_HEADS
from logitsieve.heads import HEADS, Softmax, make_heads
from logitsieve.index import open_index
from tests.gpu.opened import DEVICE, make_gpu_head, make_gpu_heads, noting_waits, there
from tests.synthetic import make_head, make_hidden, make_softmax, usual_sketch, write_heads

SOFTMAX, HIDDEN = make_softmax(400, 20), make_hidden(6, 20)
EVERY_HEAD = pytest.mark.parametrize("name", GPU_HEADS)


def on_gpu(name: str) -> Any:
    return make_gpu_head(name, SOFTMAX)


def on_host(name: str) -> Any:
    """The head on the host that proves as much."""
    proving = {"max_error": 0.0} if name == "sketch" else {}
    return make_head(name, SOFTMAX, **proving)


@pytest.mark.parametrize(
    ("name", "knobs", "k"),
    [
        *((name, {}, k) for name in GPU_HEADS for k in (1, 5, 400)),
        ("screen", {"probes": 3}, 3),
        ("screen", {"probes": 6}, 70),
        ("screen", {"escalate": 0.3}, 4),
        ("screen", {"escalate": 0.9, "probes": 2}, 3),
        ("svd", {"width": 3, "candidates": 40}, 3),
        ("svd", {"candidates": 2}, 3),
    ],
)
def test_answers_are_the_hosts(name: str, knobs: dict[str, float], k: int) -> None:
    head, host = on_gpu(name).with_knobs(**knobs), on_host(name).with_knobs(**knobs)
    assert head.knobs == host.knobs
    expected = host.topk(HIDDEN, k)
    tensors = head.topk(there(HIDDEN), k)
    for top in (head.topk(HIDDEN, k), [each.cpu().numpy() for each in tensors]):
        for mine, theirs in zip(top[:3], expected[:3], strict=True):
            np.testing.assert_array_equal(mine, theirs)
            assert mine.dtype == theirs.dtype
    assert (tensors.scanned.cpu().numpy() == head.topk(HIDDEN, k).scanned).all()


@EVERY_HEAD
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_tensors_of_any_floating_type(name: str, dtype: torch.dtype) -> None:
    hidden_states = there(HIDDEN).to(dtype)
    top = on_gpu(name).topk(hidden_states, 4)
    host = on_host(name).topk(hidden_states.float().cpu().numpy(), 4)
    for mine, theirs in zip(top[:3], host[:3], strict=True):
        np.testing.assert_array_equal(mine.cpu(), theirs)


@EVERY_HEAD
@pytest.mark.parametrize("k", [4, 400])
def test_a_tensors_bad_row_is_told_from_the_others(name: str, k: int) -> None:
    hidden_states, head = there(HIDDEN), on_gpu(name)
    whole = head.topk(hidden_states, k)
    hidden_states[1, 2] = torch.nan
    top, good = head.topk(hidden_states, k), [0, 2, 3, 4, 5]
    assert (top.ids[1] == -1).all()
    assert top.logits[1].isnan().all()
    assert (top.proven[1], top.scanned[1]) == (False, 0)
    assert torch.equal(top.ids[good], whole.ids[good])


@pytest.mark.parametrize("name", ["full", "sketch"])
def test_ties_are_open_in_tensors_and_finished_in_arrays(name: str) -> None:
    softmax = Softmax(np.zeros((400, 20), np.float32), np.zeros(400, np.float32))
    head, host = make_gpu_head(name, softmax), make_head(name, softmax).topk(HIDDEN, 3)
    top: Any = head.topk(there(HIDDEN), 3)
    assert not top.proven.any()
    assert not top.logits.any()
    found = head.topk(HIDDEN, 3)
    assert found.proven.all()
    np.testing.assert_array_equal(found.ids, host.ids)


@pytest.mark.parametrize("fallback", ["full", "sketch"])
def test_rows_that_a_screen_cannot_answer_are_proven(fallback: str) -> None:
    knobs: dict[str, dict[str, float]] = {"full": {}, "sketch": {}, "screen": {}}
    head = make_gpu_heads(SOFTMAX, knobs, fallback)["screen"].with_knobs(escalate=0.3)
    top, full = head.topk(HIDDEN, 4), make_head("full", SOFTMAX).topk(HIDDEN, 4)
    assert 0 < top.proven.sum() < 6
    np.testing.assert_array_equal(top.ids[top.proven], full.ids[top.proven])
    assert (top.scanned[top.proven] == 400).all()


def test_nothing_is_waited_for() -> None:
    heads, hidden_states = make_gpu_heads(SOFTMAX, {name: {} for name in GPU_HEADS}), there(HIDDEN)
    for head in heads.values():
        head.topk(hidden_states, 5)  # which compiles kernels
        with noting_waits() as waits:
            head.topk(hidden_states, 5)
        assert waits == []
    if DEVICE.type == "cpu":  # where lists are too short, a fallback is waited for
        with noting_waits() as waits:
            heads["screen"].topk(hidden_states, 300)
        assert waits != []


@EVERY_HEAD
@pytest.mark.parametrize(
    ("hidden_states", "k", "field"),
    [
        (torch.zeros(2, 21), 2, "hidden_states"),
        (torch.zeros(0, 20), 2, "hidden_states"),
        (torch.zeros(2, 20, dtype=torch.int32), 2, "hidden_states"),
        (torch.zeros(2, 20), 0, "k"),
    ],
)
def test_wrong_tensors_are_refused(
    name: str, hidden_states: torch.Tensor, k: int, field: str
) -> None:
    with pytest.raises(InvalidRequest, match=field):
        on_gpu(name).topk(there(hidden_states.numpy()), k)


def test_an_index_opens_on_a_gpu(tmp_path: Path) -> None:
    path = write_heads(tmp_path / "lm" / "1", SOFTMAX, "lsh", default_head="full")
    with open_index(path, device="cuda") as index, open_index(path) as host:
        assert index.heads == ("full",)
        expected = host.head().topk(HIDDEN, 5).ids
        np.testing.assert_array_equal(index.head().topk(HIDDEN, 5).ids, expected)
        with pytest.raises(InvalidRequest, match=r"full \(on cuda\)"):
            index.head("lsh")
        hidden_states, ids = there(HIDDEN[:2]), there(np.array([[3, 399, 7], [0, 1, 2]]))
        found = index.logits(hidden_states, ids)
        assert isinstance(found, torch.Tensor)
        np.testing.assert_array_equal(found.cpu(), host.logits(HIDDEN[:2], ids.cpu().numpy()))
        ids[1, 1] = 400
        assert index.logits(hidden_states, ids)[1].tolist()[1] == -np.inf
        hidden_states[0, 3] = torch.inf
        assert torch.as_tensor(index.logits(hidden_states, ids)).isnan().any(1).tolist() == [
            True,
            False,
        ]
        with pytest.raises(InvalidRequest, match="ids"):
            index.logits(hidden_states, ids[:1])


def test_every_head_has_its_twin_on_the_host_and_its_row_in_the_docs() -> None:
    docs = (Path(__file__).parents[2] / "docs/gpu.md").read_text("utf-8")
    for name in GPU_HEADS:
        assert name in HEADS, f"core/logitsieve/heads: {name}"
        assert f"\n| `{name}` |" in docs, f"docs/gpu.md, which heads: {name}"


def test_a_sketch_proves_at_any_max_error() -> None:
    registry, on_device = GpuBackend(DEVICE).adapted(HEADS, SOFTMAX)
    parts, knobs = {"sketch": usual_sketch(SOFTMAX)}, {"sketch": {"max_error": 1e-3}}
    head = make_heads(registry, on_device, parts, knobs, 1)["sketch"].with_knobs(max_error=0.5)
    assert (head.knobs, head.max_error, head.proves) == ({"max_error": 0.0}, 0.0, True)
    assert head.topk(HIDDEN, 5).proven.all()
