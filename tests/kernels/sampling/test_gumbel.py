"""Draws from all logits: tools/attacks/law.py judges which id wins, and log Z of what is left."""

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.requests import Sampling
from logitsieve.heads import Softmax
from logitsieve.heads._base.edits import Edits
from logitsieve.heads.full import Drawn, FullHead
from logitsieve.kernels.topk.merge import TOP, VALUE
from logitsieve.kernels.topk.queries import QUERIES_AT_ONCE
from tests.oracle import chi_square_p, gumbel_noise
from tests.synthetic import make_hidden, make_softmax
from tools.attacks.draws import fill_noise

BELOW_ONE = float(np.nextafter(1.0, 0.0))
FILTERS = [(1.0, 0.0), (0.9, 0.0), (0.5, 0.2), (1.0, 0.05)]


def drawn_of(
    logits: np.ndarray, draws: int, top_p: float = 1.0, min_p: float = 0.0
) -> tuple[set[int], float]:
    """The ids that are drawn from these logits, and log Z."""
    softmax = Softmax(np.zeros((logits.size, 4), np.float32), logits.astype(np.float32))
    options = Sampling(draws, np.zeros(1, np.uint64), 4, top_p=top_p, min_p=min_p)
    found = FullHead(softmax).draw(np.zeros((1, 4), np.float32), options)
    return set(found.ids[0].tolist()), found.log_z[0, TOP] + found.log_z[0, VALUE]


@pytest.mark.parametrize(
    ("top_p", "min_p", "count"),
    [
        (5e-324, 0.0, 1),
        (0.25, 0.0, 2),  # exactly what the first two have
        (float(np.nextafter(0.25, 1)), 0.0, 3),
        (BELOW_ONE, 0.0, 8),
        (1.0, 1.0, 8),  # ties with the best remain
        (0.5, 1.0, 4),
    ],
)
def test_equal_logits_are_in_by_the_lower_id(top_p: float, min_p: float, count: int) -> None:
    ids, log_z = drawn_of(np.full(8, 3.0), 200, top_p, min_p)
    assert ids == set(range(count))
    assert log_z == pytest.approx(3 + np.log(count), rel=1e-14)


@pytest.mark.parametrize(("top_p", "min_p"), FILTERS)
def test_rows_do_not_depend_on_others_nor_on_how_many_draws(top_p: float, min_p: float) -> None:
    head, hidden_states = FullHead(make_softmax(3000, 9)), make_hidden(70, 9, scale=0.3)
    rows = np.arange(70)
    edited = np.stack([rows, 50 + rows], axis=1).astype(np.int32)

    def drawn(part: slice, draws: int) -> Drawn:
        ids = edited[part].ravel()
        values = np.resize([2.0, -np.inf], ids.size)
        edits = Edits(np.arange(0, ids.size + 1, 2), ids, values)
        seeds = rows[part].astype(np.uint64)
        return head.draw(
            hidden_states[part], Sampling(draws, seeds, 4, top_p=top_p, min_p=min_p), 1.3, edits
        )

    whole = drawn(slice(70), 30)
    for part in (slice(0, 1), slice(3, 4), slice(2, 69), slice(64, 70)):
        again = drawn(part, 7)
        np.testing.assert_array_equal(again.ids, whole.ids[part, :7])
        np.testing.assert_array_equal(again.log_z, whole.log_z[part])


def test_what_no_float32_weight_holds_is_never_missed() -> None:
    """One id far above many: the bound of noise says that no other can win."""
    logits = np.full(20_000, -41.0)
    logits[7_000] = 0.0
    ids, log_z = drawn_of(logits, 300)
    assert ids == {7_000}
    assert 0 < log_z < 1e-12


def test_noise_is_gumbels_by_its_definition() -> None:
    noise, ids = np.empty(1001), np.arange(1001)
    for seed, step, draw in ((0, 0, 0), (2**64 - 1, 2**40 + 7, 3), (0x1234_5678_9ABC_DEF0, 1, 999)):
        fill_noise(np.uint64(seed), np.uint64(step), np.uint64(draw), noise)
        np.testing.assert_allclose(noise, gumbel_noise(seed, step, draw, ids), rtol=0, atol=1e-13)
    noise = np.empty(200_000)
    fill_noise(np.uint64(1), np.uint64(2), np.uint64(3), noise)
    ranks = np.exp(-np.exp(-np.sort(noise)))  # uniform
    distance = np.abs(ranks - (np.arange(noise.size) + 0.5) / noise.size).max()
    assert distance * np.sqrt(noise.size) < 1.95  # 1 in 1000


def test_exponentials_of_a_block_are_independent() -> None:
    """Renyi: gaps in order, times how many are left, are exponential; any id has the least."""
    noise = np.empty(16 * 50_000)
    fill_noise(np.uint64(5), np.uint64(6), np.uint64(7), noise)
    blocks = np.exp(-noise).reshape(-1, 16)
    ordered = np.sort(blocks, axis=1)
    gaps = np.diff(ordered, axis=1, prepend=0.0) * np.arange(16, 0, -1)
    for gap in gaps.T:
        ranks = np.exp(-np.sort(gap))[::-1]
        distance = np.abs(ranks - (np.arange(gap.size) + 0.5) / gap.size).max()
        assert distance * np.sqrt(gap.size) < 2.3  # 1 in 20,000
    order = np.argsort(blocks, axis=1)
    for place in (0, 1, 15):
        assert chi_square_p(np.bincount(order[:, place], minlength=16), np.full(16, 1 / 16)) > 1e-4
    pairs = np.bincount(16 * order[:, 0] + order[:, 1], minlength=256).reshape(16, 16)
    others = pairs[~np.eye(16, dtype=bool)]
    assert chi_square_p(others, np.full(240, 1 / 240)) > 1e-4
    correlations = np.corrcoef(np.log(gaps.T)) - np.eye(16)
    assert np.abs(correlations).max() < 5 / np.sqrt(len(blocks))


MANY = 2 * QUERIES_AT_ONCE + 5  # rows of hidden_states in several blocks, which share scratch
HIDDEN, SEEDS = make_hidden(MANY), np.arange(MANY, dtype=np.uint64)


@pytest.mark.parametrize("row", [0, QUERIES_AT_ONCE - 1, QUERIES_AT_ONCE + 3])
def test_the_first_row_that_cannot_be_answered_is_named(row: int) -> None:
    hidden_states = HIDDEN.copy()
    hidden_states[[row, row + 1]] = np.nan
    with pytest.raises(InvalidRequest, match=rf"hidden_states\[{row}\]"):
        FullHead(make_softmax()).draw(hidden_states, Sampling(1, SEEDS))
