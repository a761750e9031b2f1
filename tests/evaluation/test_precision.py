from typing import ClassVar, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitsieve.api.results import ArrayLike, Candidates, Float32, Float64, TopK
from logitsieve.evaluation import Judge, evaluate, precision
from logitsieve.evaluation.precision import (
    MASS_STRIDE,
    Precision,
    block_means,
    hits,
    log_mass,
    lower_bound,
    student95,
    summarize,
    wilson,
)
from logitsieve.heads.full import FullHead
from tests.synthetic import make_head, make_hidden, make_softmax

BLOCKS = [make_hidden(64), make_hidden(16, seed=5)]


def top(ids: list[list[int]], logits: list[list[float]]) -> TopK:
    rows, k = np.shape(ids)
    answer, none = (np.array(ids, np.int32), np.array(logits, np.float32)), np.zeros(rows, bool)
    return TopK(*answer, none, np.full(rows, k, np.int32), none)


def test_hits_count_ids_in_any_order_ties_with_the_last_and_no_id_twice() -> None:
    truth = top([[1, 2, 3, 4]], [[9, 8, 7, 6]])
    assert hits(top([[3, 1, 9]], [[7, 9, 1]]), truth, 3).tolist() == [2]
    assert hits(top([[4, 1, 2]], [[6, 9, 8]]), truth, 3).tolist() == [2]
    truth = top([[1, 2]], [[9, 8]])
    assert hits(top([[1, 7]], [[9, 8]]), truth, 2).tolist() == [2]
    assert hits(top([[7, 6]], [[8, 8]]), truth, 2).tolist() == [2]
    with pytest.raises(ValueError, match="twice"):
        hits(top([[1, 1]], [[9, 9]]), top([[1, 2]], [[9, 8]]), 2)


def test_the_exact_head_is_always_right_and_its_proof_needs_no_judge() -> None:
    full = make_head("full", make_softmax())
    found = evaluate(full, full, [make_hidden(50), make_hidden(30, seed=5)])
    assert (found.rows, found.scanned) == (80, {1: 300, 5: 300, 10: 300})
    assert found.mass_kept == pytest.approx(1)
    low = Counting(-1e-6)  # log Z, as rounding may leave it
    assert evaluate(full, low, [make_hidden(50)]).mass_kept == 1
    proven = Precision(mean=1.0, low=1.0, worst=1.0, best=1.0, uneven=False)
    assert found.precision == {1: proven, 5: proven, 10: proven}
    with pytest.raises(ValueError, match="none"):
        evaluate(full, full, [])


def test_precision_and_candidates_of_a_screen() -> None:
    softmax = make_softmax()
    screen, full = make_head("screen", softmax), make_head("full", softmax)
    blocks = [make_hidden(64), make_hidden(64, seed=9)]
    found = evaluate(screen, full, blocks, (1, 3))
    hidden_states = np.concatenate(blocks)
    dense = hidden_states @ softmax.weight.T + softmax.bias
    best = np.argsort(-dense, axis=1)
    answers = screen.topk(hidden_states, 3)
    overlap = [np.isin(answers.ids[row], best[row, :3]).mean() for row in range(128)]
    assert found.precision[3].mean == pytest.approx(np.mean(overlap))
    assert found.precision[1].mean == (screen.topk(hidden_states, 1).ids[:, 0] == best[:, 0]).mean()
    assert found.scanned[3] == pytest.approx(answers.scanned.mean())


def test_mass_is_the_softmax_over_the_candidates() -> None:
    softmax = make_softmax()
    screen, full = make_head("screen", softmax), make_head("full", softmax)
    hidden_states = make_hidden(5)
    dense = (hidden_states @ softmax.weight.T + softmax.bias).astype(np.float64)
    p = np.exp(dense - dense.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    found = screen.candidates(hidden_states, 1)
    lists = np.split(found.ids, found.offsets[1:-1])
    expected = [p[row, ids].sum() for row, ids in enumerate(lists)]
    kept = np.exp(log_mass(screen, hidden_states, 1, 300) - log_mass(full, hidden_states, 1, 300))
    np.testing.assert_allclose(kept, expected, rtol=1e-5)
    assert evaluate(screen, full, [hidden_states]).mass_kept == pytest.approx(expected[0], rel=1e-5)


def test_coverage_is_the_share_that_the_head_answered_itself() -> None:
    softmax = make_softmax()
    screen, full = make_head("screen", softmax, escalate=0.25), make_head("full", softmax)
    found = evaluate(screen, full, BLOCKS, (1, 5, 40))
    hidden_states = np.concatenate(BLOCKS)
    for k in (1, 5, 40):
        top = screen.topk(hidden_states, k)
        own = ~top.proven
        assert 0 < own.sum() < len(hidden_states)
        assert found.coverage[k] == own.mean()
    assert found.coverage[40] < found.coverage[1]  # lists that are too short count as well
    never = make_head("screen", softmax, escalate=1.0)
    assert evaluate(full, full, BLOCKS, (1,)).coverage == {1: 1}
    found = evaluate(never, full, BLOCKS, (1,))
    assert (found.coverage, found.precision[1].mean) == ({1: 0}, 1)


def test_memory_does_not_change_the_mass(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, hidden_states = make_head("screen", make_softmax()), make_hidden(9)
    whole = log_mass(screen, hidden_states, 1, 300)
    monkeypatch.setattr(precision, "MASS_LOGITS", 600)  # two rows at once
    np.testing.assert_array_equal(log_mass(screen, hidden_states, 1, 300), whole)
    full = Counting()
    log_mass(full, hidden_states, 1, 300)
    log_mass(full, hidden_states[:2], 1, 601)
    assert full.listed == [2, 2, 2, 2, 1, 1, 1]


class Counting:
    """The full head, counting the rows that it was given."""

    proves: ClassVar[bool] = True

    def __init__(self, lift: float = 0.0) -> None:
        self.answered = self.summed = 0
        self.listed: list[int] = []
        self._lift = lift  # of its log Z
        self._head = cast(FullHead, make_head("full", make_softmax()))

    def topk(self, hidden_states: ArrayLike, k: int) -> TopK:
        self.answered += len(np.asarray(hidden_states))
        return self._head.topk(hidden_states, k)

    def candidates(self, hidden_states: ArrayLike, k: int) -> Candidates:
        self.listed.append(len(np.asarray(hidden_states)))
        return self._head.candidates(hidden_states, k)

    def quick_log_z(self, hidden_states: Float32) -> Float64:
        self.summed += len(hidden_states)
        return self._head.quick_log_z(hidden_states) + self._lift


def test_a_judge_finds_the_truth_once_and_says_what_evaluate_says() -> None:
    full, screen = Counting(), make_head("screen", make_softmax())
    judge = Judge(full, lambda: BLOCKS, (1, 5))
    assert (full.answered, full.summed) == (80, 80 // MASS_STRIDE)
    plain = make_head("full", make_softmax())
    assert judge.evaluate(screen) == evaluate(screen, plain, BLOCKS, (1, 5))
    assert judge.evaluate(full).mass_kept == 1
    assert (full.answered, full.summed) == (80, 80 // MASS_STRIDE)


@pytest.mark.parametrize(("freedom", "expected"), [(4, 2.132), (9, 1.833), (19, 1.729)])
def test_student_s_points(freedom: int, expected: float) -> None:
    """Against the printed tables."""
    assert student95(freedom) == pytest.approx(expected, abs=0.003)
    assert student95(9) == pytest.approx(1.833113, abs=1e-4)


@pytest.mark.parametrize(("mean", "rows"), [(0.9, 100), (0.5, 7)])
def test_wilson_s_bound_is_the_least_mean_not_refuted(mean: float, rows: int) -> None:
    low = wilson(mean, rows)
    assert mean - low == pytest.approx(1.6448536 * np.sqrt(low * (1 - low) / rows), rel=1e-6)


def test_the_bound_is_students_of_five_blocks_and_wilsons_of_fewer() -> None:
    """Against the printed t of 2.132; five would have 2.015."""
    means = np.array([1.0, 0.9, 0.8, 1.0, 0.5])
    bound = means.mean() - 2.132 * means.std(ddof=1) / np.sqrt(5)
    assert lower_bound(np.repeat(means, 10)) == pytest.approx(bound, abs=0.001)
    assert lower_bound(np.repeat(means[1:], 10)) == wilson(0.8, 40)  # of four no spread is known
    assert lower_bound(np.ones(100)) == pytest.approx(wilson(1.0, 100))
    assert 0.9 < lower_bound(np.ones(100)) < lower_bound(np.ones(10_000)) < 1


@given(st.lists(st.sampled_from([0.0, 0.2, 0.8, 1.0]), min_size=1, max_size=300))
def test_the_bound_is_a_share_below_the_mean(shares: list[float]) -> None:
    share = np.array(shares)
    assert 0 <= lower_bound(share) <= share.mean() + 1e-12
    assert lower_bound(np.repeat([1.0, 0.0], [15, 285])) == 0  # where Student's is below 0


def test_the_bound_holds_in_95_of_100_cases_for_correlated_rows() -> None:
    """Rows come in runs of 25 that are right or wrong together."""
    random = np.random.default_rng(1)
    below = 0
    for _ in range(400):
        runs = random.random(200) < 0.9
        below += lower_bound(np.repeat(runs, 25).astype(float)) <= 0.9
    assert below / 400 >= 0.92
    random = np.random.default_rng(2)
    together = np.repeat((random.random(200) < 0.9).astype(float), 25)
    assert lower_bound(together) < lower_bound(random.permutation(together)) - 0.005


def test_blocks_are_contiguous_and_cfitted_to() -> None:
    share = np.arange(103) / 103
    means = block_means(share)
    assert (np.diff(means) > 0).all()
    assert len(means) == 10
    assert len(block_means(np.ones(3))) == 1
    assert len(block_means(np.ones(10_000))) == 20


def test_a_block_far_below_the_others_is_reported() -> None:
    share = (np.random.default_rng(3).random(10_000) < 0.99).astype(float)
    assert not summarize(share).uneven
    share[4000:4500] *= np.random.default_rng(4).random(500) < 0.9
    found = summarize(share)
    assert found.uneven
    assert found.worst < 0.92 < found.mean < found.best


@pytest.mark.parametrize(
    ("rows", "misses", "worst", "uneven"),
    [  # of blocks
        (5000, 0, 40, False),  # less than 0.01 below
        (5000, 0, 60, True),
        (500, 50, 75, False),  # 0.0475 below, 3.5 standard deviations
        (500, 50, 82, True),  # 4.5 of them
    ],
)
def test_how_far_below_a_block_has_to_be(rows: int, misses: int, worst: int, uneven: bool) -> None:
    counts = [misses] * 19 + [worst]
    share = np.concatenate([np.arange(rows) >= count for count in counts]).astype(float)
    assert summarize(share).uneven == uneven
