"""Requests of tensors on the GPU, and what their replies must equal."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from logitsieve.decoding import LocalDecoder
from logitsieve.gpu.device import device_named
from tests.oracle import log_probs, logits64
from tests.synthetic import make_hidden

HIDDEN = make_hidden(4, 12)


SEEDS = np.array([1, 2, 3, 2**64 - 5], np.uint64)


Pair = tuple[LocalDecoder, LocalDecoder]


BY_ROW = ("exact", "scanned", "fallback", "log_z", "log_z_low", "log_z_high")


def there(array: np.ndarray | None = None) -> torch.Tensor:
    """A copy on the GPU; of HIDDEN, if of nothing else."""
    return torch.from_numpy((HIDDEN if array is None else array).copy()).to(device_named("cuda"))


def bits(seeds: np.ndarray) -> torch.Tensor:
    return there(seeds.view(np.int64))


def assert_same(gpu: Any, host: Any) -> None:
    """Equal in everything but for what rounds in log Z; `gpu` all in tensors."""
    for name in gpu._fields:
        mine, theirs = getattr(gpu, name), getattr(host, name)
        if name == "answer":
            continue
        assert isinstance(mine, torch.Tensor), name
        assert str(mine.dtype).endswith(str(theirs.dtype)), name
        if theirs.dtype == np.float32:
            np.testing.assert_allclose(mine.cpu(), theirs, rtol=1e-6, atol=4e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(mine.cpu(), theirs, err_msg=name)
    for name in BY_ROW:
        if (name, host.answer.head) == ("scanned", "certified"):
            continue  # the GPU's bounds are of the fine codes only
        mine, theirs = getattr(gpu.answer, name), getattr(host.answer, name)
        assert (mine is None) == (theirs is None), name
        if theirs is not None:
            assert isinstance(mine, torch.Tensor), name
            np.testing.assert_allclose(mine.cpu(), theirs, rtol=1e-6, err_msg=name)
    told = "model", "version", "digest", "head", "knobs", "normalizer"
    assert [getattr(gpu.answer, name) for name in told] == [
        getattr(host.answer, name) for name in told
    ]


def true_log_probs(pair: Pair, scale: float, hidden: np.ndarray = HIDDEN) -> np.ndarray:
    """Long doubles [B, V] of softmax(scale x logits)."""
    softmax = pair[1].index.softmax
    logits = logits64(softmax.weight, softmax.bias, hidden).astype(np.longdouble) * scale
    return np.stack([log_probs(row) for row in logits])


def assert_contains(answer: Any, pair: Pair, scale: float, hidden: np.ndarray = HIDDEN) -> None:
    """The printed interval holds the true log Z, and the printed value."""
    softmax, true = pair[1].index.softmax, true_log_probs(pair, scale, hidden)
    logits = logits64(softmax.weight, softmax.bias, hidden).astype(np.longdouble) * scale
    log_z = logits.max(axis=1) - true.max(axis=1)
    value, low, high = (
        each.cpu().numpy() for each in (answer.log_z, answer.log_z_low, answer.log_z_high)
    )
    assert ((low <= value) & (value <= high)).all()
    assert ((low <= log_z) & (log_z <= high)).all()


def judge(pair: Pair, asked: dict[str, Any]) -> LocalDecoder:
    """The host, or, where log Z is an interval, the GPU by arrays: its bounds are its own."""
    return pair[0] if asked.get("normalizer") == "certified" else pair[1]


def hypotheses(seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        "scores": -random.exponential(2.0, 4).astype(np.float32),
        "lengths": random.integers(0, 9, 4).astype(np.int32),
        "finished": random.random(4) < 0.4,
    }


TARGETS = np.random.default_rng(3).integers(0, 260, (4, 5))
