"""Edges of lists; what filters leave, and draws, are judged in decoding/test_sampler*.py."""

import numpy as np
import pytest

from logitsieve.kernels.sampling.lists import CLOSE, cut_best, cut_lists, list_sample
from logitsieve.kernels.topk.merge import VALUE

BELOW_ONE = float(np.nextafter(1.0, 0.0))


def left_of(weights: list[float], top_p: float, off: float = np.inf) -> int:
    """What `cut_best` says of the weights of all ids, with log Z to within `off`; min-p is 0.1."""
    offsets, lengths = np.array([0, len(weights)]), np.empty(1, np.int64)
    log_z = np.array([[0.0, 0.0, -off, off]])
    log_z[0, VALUE:] += np.log(np.sum(weights))
    cut_best(offsets, np.log(weights), 1.0, top_p, 0.1, log_z, lengths)
    return int(lengths[0])


def test_the_best_ids_tell_nothing_near_an_edge() -> None:
    for near in (1 - CLOSE / 2, 1.0, 1 + CLOSE / 2):
        assert left_of([1.0, 0.1 * near, 0.01, 0.001], 1.0) == -1 - 1
    assert left_of([1.0, 0.1 * (1 + 2 * CLOSE), 0.01], 1.0) == 2
    assert left_of([1.0, 0.1 * (1 - 2 * CLOSE), 0.01], 1.0) == 1
    # The second is within the nucleus whatever the rest adds, then only if it adds much.
    assert left_of([1.0, 0.9, 0.01], 0.6) == 2
    assert left_of([1.0, 0.9, 0.01], 0.5) == -1 - 1
    # By log Z it is not: half of all is 0.955. Within a tenth of a nat it might be.
    assert left_of([1.0, 0.9, 0.01], 0.5, 0.01) == 1
    assert left_of([1.0, 0.9, 0.01], 0.5, 0.1) == -1 - 1


@pytest.mark.parametrize(
    ("top_p", "min_p", "length"),
    [
        (5e-324, 0.0, 1),
        (0.25, 0.0, 1),  # exactly what the first has
        (float(np.nextafter(0.25, 1)), 0.0, 2),
        (BELOW_ONE, 0.0, 4),
        (1.0, 1.0, 4),  # ties with the best remain
        (0.5, 1.0, 2),
    ],
)
def test_equal_logits(top_p: float, min_p: float, length: int) -> None:
    lengths = np.empty(1, np.int64)
    cut_lists(np.array([0, 4]), np.zeros(4), 1.0, top_p, min_p, lengths)
    assert lengths[0] == length


def test_what_has_no_share_is_never_drawn() -> None:
    """From a list that is not the first."""
    logits, offsets, ids = np.array([7.0, 1e30, 1e30, -1e30]), np.array([0, 1, 4]), np.arange(4)
    places, seeds = np.empty((2, 2000), np.int32), np.array([0, 3], np.uint64)
    list_sample(offsets, ids.astype(np.int32), logits, seeds, np.uint64(5), 1e5, 0, places)
    assert [set(row.tolist()) for row in places] == [{0}, {0, 1}]
