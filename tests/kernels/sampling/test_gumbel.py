import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.heads import Softmax
from logitsieve.heads.exact import DrawOptions, ExactHead
from logitsieve.kernels.sampling.gumbel import gumbel_sample
from logitsieve.kernels.topk.merge import FIELDS, TOP, VALUE
from logitsieve.kernels.topk.queries import QUERIES_AT_ONCE
from tests import oracle
from tests.attacks.draws import fill_noise
from tests.oracle import chi_square_p, filtered, gumbel_noise, log_sum_exp, logits64
from tests.synthetic import make_hidden, make_softmax

Edited = list[tuple[list[int], list[float]]]  # ids of each row, and their values
BELOW_ONE = float(np.nextafter(1.0, 0.0))
FILTERS = [(1.0, 0.0), (0.9, 0.0), (0.5, 0.2), (1.0, 0.05)]
EXTREME = [(5e-324, 0.0), (BELOW_ONE, 0.0), (1.0, 1.0)]


def drawn(
    softmax: Softmax,
    hidden: np.ndarray,
    draws: int,
    inverse: float,
    edits: Edited | None = None,
    filters: tuple[float, float] = (1.0, 0.0),
    part: slice = slice(None),
) -> tuple[np.ndarray, np.ndarray]:
    """(ids, log Z) of some rows, row r with seed r, at step 4."""
    rows = len(hidden)
    edits = edits or [([], [])] * rows
    offsets = np.cumsum([0, *(len(ids) for ids, _ in edits)])
    named = np.array([i for ids, _ in edits for i in ids], np.int32)
    values = np.array([value for _, values in edits for value in values])
    ids, log_z = np.full((rows, draws), -1, np.int32), np.full((rows, FIELDS), np.nan)
    seeds = np.arange(rows, dtype=np.uint64)
    bad = gumbel_sample(
        softmax.descriptor.ctypes.data, hidden, seeds, np.uint64(4), inverse, *filters,
        0, offsets, named, values, ids, log_z, *part.indices(rows)[:2],
    )  # fmt: skip
    assert bad == -1
    return ids, inverse * log_z[:, TOP] + log_z[:, VALUE]


@pytest.mark.parametrize("size", [1, 17, 300])
@pytest.mark.parametrize("inverse", [1e-4, 1.0, 1e5])
@pytest.mark.parametrize("filters", [*FILTERS, *EXTREME], ids=str)
def test_the_largest_perturbed_logit_wins_of_those_that_filters_leave(
    size: int, inverse: float, filters: tuple[float, float]
) -> None:
    softmax, hidden = make_softmax(size, 8), make_hidden(3, 8)
    logits = logits64(softmax.weight, softmax.bias, hidden)
    banned = [] if size == 1 else [int(logits[1].argmax())]
    edits = [([], []), (banned, [-np.inf] * len(banned)), ([0], [1.5])]
    ids, log_z = drawn(softmax, hidden, 60, inverse, edits, filters)
    for row, (changed, values) in enumerate(edits):
        logits[row, changed] = values
        left = filtered(logits[row], 1 / inverse, 0, *filters)
        if filters[0] != BELOW_ONE:
            assert ids[row].tolist() == oracle.drawn(logits[row], 60, row, 4, 1 / inverse, left)
            wanted = log_sum_exp(logits[row, left] * inverse)
            assert log_z[row] == pytest.approx(wanted, rel=1e-12, abs=1e-12)
        else:  # rounding decides about what weighs next to nothing
            assert set(ids[row]) <= set(left)
            assert log_z[row] == pytest.approx(log_sum_exp(logits[row] * inverse), abs=1e-12)


def flat(logits: np.ndarray) -> tuple[Softmax, np.ndarray]:
    """A softmax and a row of hidden with these logits."""
    weight = np.zeros((logits.size, 4), np.float32)
    return Softmax(weight, logits.astype(np.float32)), np.zeros((1, 4), np.float32)


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
    ids, log_z = drawn(*flat(np.full(8, 3.0)), 200, 1.0, None, (top_p, min_p))
    assert set(ids[0]) == set(range(count))
    assert log_z[0] == pytest.approx(3 + np.log(count), rel=1e-14)


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_rows_do_not_depend_on_others_nor_on_how_many_draws(filters: tuple[float, float]) -> None:
    softmax, hidden = make_softmax(3000, 9), make_hidden(70, 9, scale=0.3)
    edits: Edited = [([row, 50 + row], [2.0, -np.inf]) for row in range(70)]
    whole, log_z = drawn(softmax, hidden, 30, 1.3, edits, filters)
    for part in (slice(0, 1), slice(3, 4), slice(2, 69), slice(64, 70)):
        ids, again = drawn(softmax, hidden, 7, 1.3, edits, filters, part)
        np.testing.assert_array_equal(ids[part], whole[part, :7])
        np.testing.assert_array_equal(again[part], log_z[part])
        outside = np.delete(np.arange(70), np.arange(70)[part])
        assert (ids[outside] == -1).all()


def test_what_no_float32_weight_holds_is_never_missed() -> None:
    """One id far above many: the bound of noise says that no other can win."""
    logits = np.full(20_000, -41.0)
    logits[7_000] = 0.0
    ids, log_z = drawn(*flat(logits), 300, 1.0)
    assert (ids == 7_000).all()
    assert 0 < log_z[0] < 1e-12


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


MANY = 2 * QUERIES_AT_ONCE + 5  # rows of hidden in several blocks, which share scratch
HIDDEN, SEEDS = make_hidden(MANY), np.arange(MANY, dtype=np.uint64)


@pytest.mark.parametrize("row", [0, QUERIES_AT_ONCE - 1, QUERIES_AT_ONCE + 3])
def test_the_first_row_that_cannot_be_answered_is_named(row: int) -> None:
    hidden = HIDDEN.copy()
    hidden[[row, row + 1]] = np.nan
    with pytest.raises(InvalidRequest, match=rf"hidden\[{row}\]"):
        ExactHead(make_softmax()).draw(hidden, DrawOptions(1, SEEDS))
