from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from logitsieve.kernels.sampling.lists import CLOSE, cut_best, cut_lists, list_sample
from logitsieve.kernels.topk.merge import VALUE
from tests.oracle import drawn, filtered

BELOW_ONE = float(np.nextafter(1.0, 0.0))
SEED, STEP = 3, 9 << 33 | 5  # of draws


def length_of(
    logits: np.ndarray, top_p: float = 1.0, min_p: float = 0.0, inverse: float = 1.0
) -> int:
    offsets, lengths = np.array([0, len(logits)]), np.empty(1, np.int64)
    cut_lists(offsets, logits, inverse, top_p, min_p, lengths)
    return int(lengths[0])


def left_of(
    logits: np.ndarray,
    top_p: float,
    min_p: float,
    temperature: float,
    most: int,
    off: float = np.inf,
) -> int:
    """Call `cut_best` with the best `most` logits, and with log Z to within `off`."""
    offsets, lengths = np.array([0, most]), np.empty(1, np.int64)
    weights = np.exp((logits - logits[0]) / temperature)
    log_z = np.array([[logits[0], 0.0, -off, off]])
    log_z[0, VALUE:] += np.log(weights.sum())
    cut_best(offsets, logits[:most].copy(), 1.0 / temperature, top_p, min_p, log_z, lengths)
    return int(lengths[0])


@given(
    scale=st.sampled_from([0.1, 1.0, 3.0, 300.0]),
    temperature=st.sampled_from([1e-5, 0.3, 1.0, 2.0, 1e4]),
    top_p=st.sampled_from([5e-324, 0.1, 0.5, 0.9, 0.999, BELOW_ONE, 1.0]),
    min_p=st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0]),
    ties=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
def test_the_best_ids_tell_what_filters_leave_of_all_or_nothing(
    scale: float, temperature: float, top_p: float, min_p: float, ties: bool, seed: int
) -> None:
    assume(top_p < 1.0 or min_p > 0.0)
    logits = -np.sort(-np.random.default_rng(seed).standard_normal(300) * scale)
    if ties:
        logits = np.round(logits)
    left = len(filtered(logits, temperature, 0, top_p, min_p))
    for most, off in product((1, 8, 64), (np.inf, 0.1, 1e-12)):
        length = left_of(logits, top_p, min_p, temperature, most, off)
        assert length == left or -1 - length <= min(left, most)
    if min_p == 0.0 and 0.1 <= top_p < BELOW_ONE and not ties:  # far from all edges
        assert length == (left if left < most else -1 - most)


def test_the_best_ids_tell_nothing_near_an_edge() -> None:
    for near in (1 - CLOSE / 2, 1.0, 1 + CLOSE / 2):
        logits = np.log([1.0, 0.1 * near, 0.01, 0.001])
        assert left_of(logits, 1.0, 0.1, 1.0, 4) == -1 - 1
    assert left_of(np.log([1.0, 0.1 * (1 + 2 * CLOSE), 0.01]), 1.0, 0.1, 1.0, 3) == 2
    assert left_of(np.log([1.0, 0.1 * (1 - 2 * CLOSE), 0.01]), 1.0, 0.1, 1.0, 3) == 1
    # The second is within the nucleus whatever the rest adds, then only if it adds much.
    assert left_of(np.log([1.0, 0.9, 0.01]), 0.6, 0.1, 1.0, 3) == 2
    assert left_of(np.log([1.0, 0.9, 0.01]), 0.5, 0.1, 1.0, 3) == -1 - 1
    # By log Z it is not: half of all is 0.955. Within a tenth of a nat it might be.
    assert left_of(np.log([1.0, 0.9, 0.01]), 0.5, 0.1, 1.0, 3, 0.01) == 1
    assert left_of(np.log([1.0, 0.9, 0.01]), 0.5, 0.1, 1.0, 3, 0.1) == -1 - 1


@given(
    size=st.integers(1, 60),
    scale=st.sampled_from([0.0, 0.1, 1.0, 10.0, 300.0]),
    temperature=st.sampled_from([1e-5, 0.3, 1.0, 2.0, 1e4]),
    top_p=st.sampled_from([5e-324, 1e-9, 0.1, 0.5, 0.9, 0.999, BELOW_ONE, 1.0]),
    min_p=st.sampled_from([0.0, 1e-300, 1e-3, 0.1, 0.5, 1.0]),
    ties=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
def test_a_list_is_cut_where_it_should_be(
    size: int, scale: float, temperature: float, top_p: float, min_p: float, ties: bool, seed: int
) -> None:
    random = np.random.default_rng(seed)
    logits = -np.sort(-random.standard_normal(size) * scale)
    if ties:
        logits = np.round(logits)
    # Where the mass is that of top-p but for rounding, either length will do.
    lengths = {
        len(filtered(logits, temperature, 0, p, m))
        for p in (top_p, top_p * (1 - 1e-12), min(top_p * (1 + 1e-12), 1.0))
        for m in (min_p, min_p * (1 - 1e-12), min(min_p * (1 + 1e-12), 1.0))
    }
    # So next to 1 wherever the rest is lost in rounding; and `filtered` forgets what has no share.
    if top_p >= BELOW_ONE:
        lengths |= set(range(min(lengths), (max(lengths) if min_p else size) + 1))
    assert length_of(logits, top_p, min_p, 1.0 / temperature) in lengths


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
    assert length_of(np.zeros(4), top_p, min_p) == length


def sample(
    logits: np.ndarray, draws: int, inverse: float = 1.0, ids: np.ndarray | None = None
) -> np.ndarray:
    """Places of draws from one list, another before it."""
    both, offsets = np.concatenate([[7.0], logits]), np.array([0, 1, 1 + len(logits)])
    named = np.arange(len(logits)) if ids is None else ids
    named = np.concatenate([[3], named]).astype(np.int32)
    places, seeds = np.empty((2, draws), np.int32), np.array([0, SEED], np.uint64)
    list_sample(offsets, named, both, seeds, np.uint64(STEP), inverse, 0, places)
    assert (places[0] == 0).all()
    return places[1]


@pytest.mark.parametrize("inverse", [1e-4, 0.5, 1.0, 1e5])
def test_a_draw_is_the_winner_among_all_but_what_the_list_lacks(inverse: float) -> None:
    logits = np.random.default_rng(2).standard_normal(400).round(1)  # with ties
    left = np.lexsort((np.arange(400), -logits))[:90]
    places = sample(logits[left], 300, inverse, left)
    expected = drawn(logits, 300, SEED, STEP, 1 / inverse, left.tolist())
    assert left[places].tolist() == expected
    everywhere = np.array(drawn(logits, 300, SEED, STEP, 1 / inverse))
    inside = np.isin(everywhere, left)
    assert inside.any()
    assert (left[places] == everywhere)[inside].all()


def test_what_has_no_share_is_never_drawn() -> None:
    places = sample(np.array([1e30, 1e30, -1e30]), 2000, 1e5)
    assert set(places.tolist()) == {0, 1}
