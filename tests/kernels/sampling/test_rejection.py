"""Draws by rejection have the softmax's probabilities, whatever the bounds, slices and edits."""

from __future__ import annotations

import numpy as np
import pytest

from logitsieve.kernels.sampling.rejection import envelope_sample
from logitsieve.kernels.sketch.sketch import sketch_descriptor
from tests.oracle import chi_square_p, logits64, softmax
from tests.synthetic import certified_arrays, make_hidden, make_softmax

SOFTMAX, HIDDEN = make_softmax(60, 12, scale=0.4), make_hidden(4, 12)
ARRAYS = certified_arrays(SOFTMAX)
DESCRIPTOR = sketch_descriptor(SOFTMAX.descriptor, ARRAYS)
PLACES = np.argsort(ARRAYS["order"]).astype(np.int32)
LOGITS = logits64(SOFTMAX.weight, SOFTMAX.bias, HIDDEN)
SEEDS = np.arange(4, dtype=np.uint64)


def draw(
    samples: int, fine: bool, banned: np.ndarray, start: int = 0, stop: int = 4
) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
    """(status, ids, log Z, scanned) of rows start .. stop-1 at a temperature of 1 / 1.3."""
    ids, scanned = np.full((4, samples), -1, np.int32), np.full(4, -1, np.int32)
    log_z = np.full((4, 3), np.nan)
    places = np.tile(np.sort(banned if fine else PLACES[banned]), 4).astype(np.int32)
    offsets = np.arange(5, dtype=np.int64) * banned.size
    values = np.full(places.size, -np.inf)
    status = envelope_sample(
        DESCRIPTOR.ctypes.data, HIDDEN, SEEDS, np.uint64(3), 1.3, fine, offsets, places, values,
        ids, log_z, scanned, start, stop,
    )  # fmt: skip
    return status, ids, log_z, scanned


@pytest.mark.parametrize("fine", [False, True])
@pytest.mark.parametrize("banned", [[], [0, 7, 41]])
def test_draws_have_the_probabilities_of_what_is_left(fine: bool, banned: list[int]) -> None:
    status, ids, log_z, scanned = draw(4000, fine, np.array(banned, np.int32))
    assert status == -1
    assert (scanned <= 60).all()
    for row, logits in enumerate(LOGITS.copy()):
        logits[banned] = -np.inf
        counts = np.bincount(ids[row], minlength=60)
        assert not counts[banned].any()
        left = np.delete(np.arange(60), banned)
        assert chi_square_p(counts[left], softmax(logits, 1 / 1.3)[left]) > 1e-4
        truth = np.logaddexp.reduce(logits[left] * 1.3)
        assert log_z[row, 1] <= truth <= log_z[row, 2]


def test_a_row_of_a_slice_draws_what_it_draws_in_the_batch() -> None:
    none = np.empty(0, np.int32)
    _, whole, whole_log_z, _ = draw(20, False, none)
    _, ids, log_z, scanned = draw(20, False, none, start=1, stop=3)
    np.testing.assert_array_equal(ids[1:3], whole[1:3])
    np.testing.assert_array_equal(log_z[1:3], whole_log_z[1:3])
    assert (ids[[0, 3]] == -1).all()
    assert (scanned[[0, 3]] == -1).all()
