"""Noise, draws and log Z on a device are those of the host, but for what logarithms round."""

from typing import Any

import numpy as np
import pytest
import torch

from logitsieve.api.requests import Sampling
from logitsieve.gpu import gumbel_draws as module
from logitsieve.gpu.gumbel_draws import fields_of, gumbel_noise, weights_of
from logitsieve.heads import Softmax
from logitsieve.heads._base.edits import Edits
from tests import oracle
from tests.gpu.opened import make_gpu_heads, there
from tests.oracle import logits64
from tests.synthetic import make_head, make_hidden, make_softmax

SOFTMAX, HIDDEN = make_softmax(), make_hidden(5)
SEEDS = np.array([1, 2, 3, 2**63, 2**64 - 5], np.uint64)
HOST: Any = make_head("full", SOFTMAX)
HEADS = make_gpu_heads(SOFTMAX, {"full": {}, "sketch": {}})


@pytest.mark.parametrize("step", [0, 7, 2**64 - 1])
def test_noise_is_the_hosts(step: int) -> None:
    noise = gumbel_noise(there(SEEDS), step, range(2, 4), range(64, 141)).cpu().numpy()
    asked = step, np.arange(2, 4)[:, None], np.arange(64, 141)
    expected = [oracle.gumbel_noise(seed, *asked) for seed in SEEDS.tolist()]
    np.testing.assert_allclose(noise, expected, rtol=1e-13, atol=1e-13)


FILTERS = [(1.0, 0.0), (0.9, 0.0), (0.3, 0.0), (1.0, 0.05), (0.95, 0.02), (1e-300, 0.0), (1.0, 1.0)]


def some_edits() -> Edits:
    """The best id of each row is banned, another raised; the third row has no edits."""
    best = HOST.topk(HIDDEN, 2).ids
    offsets = np.array([0, 2, 4, 4, 6, 8])
    named = np.delete(best, 2, axis=0)
    order = np.argsort(named, axis=1)
    values = np.array([-np.inf, 9.5])[order]
    return Edits(offsets, np.take_along_axis(named, order, 1).ravel(), values.ravel())


@pytest.mark.parametrize(("top_p", "min_p"), FILTERS)
@pytest.mark.parametrize(
    ("scale", "edits"), [(1.0, None), (1000.0, None), (0.25, some_edits()), (1.0, some_edits())]
)
def test_draws_are_the_hosts(top_p: float, min_p: float, scale: float, edits: Any) -> None:
    asked = Sampling(40, SEEDS, 3, top_p=top_p, min_p=min_p), scale, edits
    expected = HOST.draw(HIDDEN, *asked)
    for name in ("full", "sketch"):
        found = HEADS[name].draw(HIDDEN, *asked)
        np.testing.assert_array_equal(found.ids, expected.ids)
        np.testing.assert_array_equal(found.scanned, expected.scanned)
        np.testing.assert_allclose(found.log_z, expected.log_z, atol=1e-11)


@pytest.mark.parametrize("first_id", [32, 1 << 20])
def test_ids_may_begin_anywhere(first_id: int) -> None:
    found = HEADS["full"].draw(HIDDEN, Sampling(40, SEEDS), first_id=first_id).ids
    expected = HOST.draw(HIDDEN, Sampling(40, SEEDS), first_id=first_id).ids
    np.testing.assert_array_equal(found, expected)
    assert (found != HOST.draw(HIDDEN, Sampling(40, SEEDS)).ids).any()


def test_draws_and_batches_in_parts_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Sampling(40, SEEDS, 3)
    whole = HEADS["full"].draw(HIDDEN, asked)
    monkeypatch.setattr(module, "LOGITS_AT_ONCE", 2 * SOFTMAX.vocab_size)
    monkeypatch.setattr("logitsieve.gpu.matrix.LOGITS_AT_ONCE", 2 * SOFTMAX.vocab_size)
    np.testing.assert_array_equal(HEADS["full"].draw(HIDDEN, asked).ids, whole.ids)


@pytest.mark.parametrize("scale", [1.0, 0.3, 50.0])
@pytest.mark.parametrize("edits", [None, some_edits()], ids=["unedited", "edited"])
def test_log_z_holds_the_true_one_in_its_interval(scale: float, edits: Any) -> None:
    logits = logits64(SOFTMAX.weight, SOFTMAX.bias, HIDDEN).astype(np.longdouble)
    if edits is not None:
        offsets, ids, values = edits.arrays
        logits[np.repeat(np.arange(5), np.diff(offsets)), ids] = values
    top = logits.max(axis=1, keepdims=True)
    others = np.sort(np.exp(scale * (logits - top)), axis=1)[:, :-1]
    true = np.log1p(others.sum(axis=1))
    fields = HEADS["full"].log_z(HIDDEN, scale, edits)
    np.testing.assert_array_equal(fields[:, 0], top[:, 0])
    assert ((fields[:, 2] <= true) & (true <= fields[:, 3])).all()
    assert (fields[:, 3] - fields[:, 2] < 1e-11).all()
    np.testing.assert_allclose(fields, HOST.log_z(HIDDEN, scale, edits), atol=1e-11)


def test_log_z_of_one_id_and_beside_the_best() -> None:
    softmax = make_softmax(1)
    fields = make_gpu_heads(softmax, {"full": {}})["full"].log_z(HIDDEN, 2.0)
    assert (fields[:, 1:3] == 0).all()
    assert (fields[:, 3] < 1e-200).all()
    ids, logits, log_z, *_ = HEADS["full"].best_with_log_z(HIDDEN, 7)
    np.testing.assert_equal((ids, logits), HOST.best_with_log_z(HIDDEN, 7)[:2])
    np.testing.assert_array_equal(log_z, HEADS["full"].log_z(HIDDEN, 1.0))
    softmax = Softmax(np.zeros((300, 4), np.float32), np.zeros(300, np.float32))
    head = make_gpu_heads(softmax, {"full": {}})["full"]
    ids, logits, *_ = head.best_with_log_z(make_hidden(2, 4), 3)
    assert ids.tolist() == [[0, 1, 2]] * 2
    assert not logits.any()


@pytest.mark.parametrize("vocab_size", [1023, 1025, 70_000])
def test_sums_of_many_small_weights(vocab_size: int) -> None:
    weights, top, best = weights_of(torch.full((1, vocab_size), 0.25).double(), 1.0)
    _, value, low, high = fields_of(weights, top, best)[0].tolist()
    assert low <= np.log(vocab_size) <= high
    assert value == pytest.approx(np.log(vocab_size), abs=1e-12)
