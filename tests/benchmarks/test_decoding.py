"""The statistics that judge draws, the simulation of lazy Gumbel draws, the sampled log Z."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.decoding.clock import time_rows
from benchmarks.decoding.goodness import chi_square, kolmogorov_smirnov, total_variation
from benchmarks.decoding.lazy_gumbel import failures
from benchmarks.decoding.partition import partition_errors
from tests.synthetic import make_hidden, make_softmax


def quiet(stage: str, done: int, total: int) -> None:
    assert 0 <= done <= total, stage


def test_the_p_value_of_chi_square_is_that_of_the_tables() -> None:
    probs = np.full(4, 0.25)
    counts = np.array([250, 250, 250, 250])
    assert chi_square(counts, probs).p_value == 1
    counts += [25, -25, 14, -14]  # sum of squares / 250 = 6.568, three degrees of freedom
    found = chi_square(counts, probs)
    assert found.statistic == pytest.approx(6.568)
    assert found.cells == 4
    assert found.p_value == pytest.approx(0.0870, abs=1e-4)


def test_rare_ids_share_a_cell() -> None:
    probs = np.array([0.5, 0.496, 0.002, 0.002])
    found = chi_square(np.array([500, 500, 0, 0]), probs)
    assert found.cells == 2
    assert found.statistic == pytest.approx(0.0, abs=1e-9)


def test_total_variation_knows_what_exact_draws_have() -> None:
    random, probs = np.random.default_rng(0), np.arange(1, 51) / 1275
    right = total_variation(random.multinomial(10_000, probs), probs, 99, random)
    wrong = total_variation(random.multinomial(10_000, probs[::-1]), probs, 99, random)
    assert abs(right.distance - right.expected) < 5 * right.deviation
    assert right.p_value > 0.001
    assert wrong.p_value == 0.01


def test_kolmogorov_smirnov_tells_uniform_values_from_others() -> None:
    random = np.random.default_rng(1)
    assert kolmogorov_smirnov(list((np.arange(60) + 0.5) / 60))[1] == 1
    assert kolmogorov_smirnov(list(random.random(60)))[1] > 0.001
    assert kolmogorov_smirnov(list(random.random(60) ** 3))[1] < 0.001


def test_the_proof_fails_as_often_as_its_bound_says_and_the_adaptive_threshold_never() -> None:
    ks, ls, size, draws = (1, 5, 20), (1, 10, 40), 100, 4000
    found = failures(np.zeros(size), ks, ls, draws, np.random.default_rng(2))
    bound = (1 - np.array(ls) / size) ** np.array(ks)[:, None]
    deviation = np.sqrt(bound * (1 - bound) / draws)
    assert (abs(found.unproven - bound) < 4 * deviation + 1e-3).all()
    assert (found.different <= found.unproven).all()
    assert not found.adaptive.any()


def test_a_list_of_all_ids_never_fails() -> None:
    logits = np.sort(np.random.default_rng(3).standard_normal(30))[::-1]
    found = failures(logits, (30,), (3,), 200, np.random.default_rng(4))
    assert not found.different.any()
    assert not found.looked_at.any()


def test_where_half_is_sampled_log_z_is_computed() -> None:
    softmax, hidden = make_softmax(300, 24), make_hidden(8)
    some, most = partition_errors(softmax, hidden, (10,), (10, 150), 0, quiet)
    assert some["rms_error"] > most["rms_error"]
    assert most["rms_error"] < 1e-5
    assert most["reported"] == 0


def test_each_contender_meets_each_row_once_after_one_that_is_not_timed() -> None:
    asked: dict[str, list[int]] = {"a": [], "b": []}
    times = time_rows({name: rows.append for name, rows in asked.items()}, 10, quiet)
    assert asked["a"] == asked["b"] == [9, *range(8), 7, 8, 9]
    assert [len(found) for found in times.values()] == [10, 10]
