"""Draws by Gumbel's trick are those of the trick written out."""

from __future__ import annotations

import numpy as np
import pytest

from logitsieve.heads import Softmax
from logitsieve.kernels.sampling.gumbel import gumbel_sample
from logitsieve.kernels.topk.merge import FIELDS, TOP, VALUE
from tests.attacks.draws import fill_noise
from tests.oracle import log_sum_exp, logits64
from tests.synthetic import make_hidden, make_softmax


def drawn(
    softmax: Softmax,
    hidden: np.ndarray,
    draws: int,
    inverse: float,
    edits: list[tuple[list[int], list[float]]],
) -> tuple[np.ndarray, np.ndarray]:
    """(ids, log Z), row r with seed r, at step 4."""
    rows = len(hidden)
    offsets = np.cumsum([0, *(len(ids) for ids, _ in edits)])
    named = np.array([i for ids, _ in edits for i in ids], np.int32)
    values = np.array([value for _, values in edits for value in values])
    ids, log_z = np.empty((rows, draws), np.int32), np.empty((rows, FIELDS))
    seeds = np.arange(rows, dtype=np.uint64)
    bad = gumbel_sample(
        softmax.descriptor.ctypes.data, hidden, seeds, np.uint64(4), inverse,
        offsets, named, values, ids, log_z, 0, rows,
    )  # fmt: skip
    assert bad == -1
    return ids, inverse * log_z[:, TOP] + log_z[:, VALUE]


@pytest.mark.parametrize("size", [1, 2, 17, 300])
@pytest.mark.parametrize("inverse", [1e-4, 0.5, 1.0, 3.0, 1e5])
def test_the_largest_perturbed_logit_wins(size: int, inverse: float) -> None:
    softmax, hidden = make_softmax(size, 8), make_hidden(3, 8)
    logits = logits64(softmax.weight, softmax.bias, hidden)
    banned = [] if size == 1 else [int(logits[1].argmax())]
    edits = [([], []), (banned, [-np.inf] * len(banned)), ([0], [1.5])]
    ids, log_z = drawn(softmax, hidden, 200, inverse, edits)
    for row, (changed, values) in enumerate(edits):
        logits[row, changed] = values
        noise, scaled = np.empty(size), (logits[row] - logits[row].max()) * inverse
        for draw in range(200):
            fill_noise(np.uint64(row), np.uint64(4), np.uint64(draw), noise)
            assert ids[row, draw] == np.argmax(scaled + noise)
        assert log_z[row] == pytest.approx(log_sum_exp(logits[row] * inverse), rel=1e-12)


def test_noise_is_gumbels() -> None:
    noise = np.empty(200_000)
    fill_noise(np.uint64(1), np.uint64(2), np.uint64(3), noise)
    ranks = np.exp(-np.exp(-np.sort(noise)))  # uniform
    distance = np.abs(ranks - (np.arange(noise.size) + 0.5) / noise.size).max()
    assert distance * np.sqrt(noise.size) < 1.95  # 1 in 1000
