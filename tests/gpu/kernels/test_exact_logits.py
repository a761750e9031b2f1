"""Logits on a GPU are the host's, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

from logitsieve.gpu.plans.exact import named_logits
from tests.gpu.softmaxes import TYPES, on_gpu, tensor
from tests.oracle import logits64
from tests.synthetic import make_hidden, make_softmax


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("rows", "vocab_size", "dim"), [(1, 1, 1), (3, 100, 33), (9, 47, 16)])
def test_logits_of_named_ids_and_of_all(dtype: str, rows: int, vocab_size: int, dim: int) -> None:
    stored, matrix = on_gpu(make_softmax(vocab_size, dim), dtype)
    hidden = make_hidden(rows, dim)
    expected = logits64(stored.weight, stored.bias, hidden)
    every = np.tile(np.arange(vocab_size, dtype=np.int32), (rows, 1))
    logits = named_logits(matrix, tensor(hidden), tensor(every))
    np.testing.assert_array_equal(logits.cpu().numpy(), expected)
    ids = np.random.default_rng(0).integers(-1, vocab_size, (rows, 21)).astype(np.int32)
    named = named_logits(matrix, tensor(hidden), tensor(ids))
    chosen = np.where(ids < 0, -np.inf, np.take_along_axis(expected, np.maximum(ids, 0), axis=1))
    np.testing.assert_array_equal(named.cpu().numpy(), chosen)


@pytest.mark.parametrize("value", [np.nan, np.inf, 3e38])
def test_rows_that_cannot_be_answered_have_none(value: float) -> None:
    softmax, hidden = make_softmax(50, 9), make_hidden(3, 9)
    hidden[1, 3] = value
    _, matrix = on_gpu(softmax)
    every = np.tile(np.arange(50, dtype=np.int32), (3, 1))
    logits = named_logits(matrix, tensor(hidden), tensor(every))
    expected = logits64(softmax.weight, softmax.bias, hidden[::2])
    np.testing.assert_array_equal(logits.cpu().numpy()[::2], expected)
    assert np.isnan(logits[1].cpu().numpy()).all()
