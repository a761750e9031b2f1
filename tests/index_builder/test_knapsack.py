from __future__ import annotations

import itertools
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitsieve.index_builder.knapsack import ROUNDING, Knapsack

WASTE = 3e-4


class Items(NamedTuple):
    cluster: np.ndarray
    hits: np.ndarray
    rows: np.ndarray


@st.composite
def items(draw: st.DrawFn, most: int = 40) -> Items:
    """Up to 4 clusters of up to 30 rows, with labels that up to all of them have."""
    rows = draw(st.lists(st.integers(1, 30), min_size=1, max_size=4))
    cluster = draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=most))
    hits = [draw(st.integers(1, rows[number])) for number in cluster]
    return Items(np.array(cluster, np.int32), np.array(hits, np.int32), np.array(rows, np.int64))


def average(drawn: Items, keep: np.ndarray) -> float:
    return float(drawn.rows[drawn.cluster[keep]].sum() / drawn.rows.sum())


def values(drawn: Items, waste: float = WASTE) -> np.ndarray:
    weight = drawn.rows[drawn.cluster]
    return np.asarray((1 + waste) * drawn.hits - waste * weight)


def one_by_one(drawn: Items, budget: float, waste: float) -> np.ndarray:
    """The greedy choice as a person would make it."""
    weight = drawn.rows[drawn.cluster]
    capacity = int(budget * drawn.rows.sum() * (1 + ROUNDING))
    keep = np.zeros(len(weight), bool)
    for item in np.argsort(-drawn.hits / weight, kind="stable"):
        if values(drawn, waste)[item] > 0 and weight[item] <= capacity:
            keep[item] = True
            capacity -= weight[item]
    return keep


@given(items(), st.floats(0.1, 60), st.sampled_from([0.0, WASTE, 0.2]))
def test_it_chooses_as_one_by_one_would(drawn: Items, budget: float, waste: float) -> None:
    keep = Knapsack(*drawn, waste).select(budget)
    np.testing.assert_array_equal(keep, one_by_one(drawn, budget, waste))


@given(items(), st.floats(0, 60))
def test_it_never_goes_over_the_budget(drawn: Items, budget: float) -> None:
    assert average(drawn, Knapsack(*drawn, WASTE).select(budget)) <= budget * (1 + 2 * ROUNDING)


@given(items(), st.sampled_from([0.0, WASTE, 0.1, 0.5]))
def test_a_large_budget_keeps_all_that_pays(drawn: Items, waste: float) -> None:
    knapsack = Knapsack(*drawn, waste)
    np.testing.assert_array_equal(knapsack.select(1000), values(drawn, waste) > 0)
    assert knapsack.everything == pytest.approx(average(drawn, values(drawn, waste) > 0))
    np.testing.assert_array_equal(knapsack.select(knapsack.everything), knapsack.select(1000))
    np.testing.assert_array_equal(knapsack.select(None), knapsack.select(1000))


@given(items(most=9), st.floats(0.1, 10))
def test_it_misses_the_best_choice_by_less_than_one_item(drawn: Items, budget: float) -> None:
    value = values(drawn)
    best = max(
        value[list(chosen)].sum()
        for size in range(len(value) + 1)
        for chosen in itertools.combinations(range(len(value)), size)
        if drawn.rows[drawn.cluster[list(chosen)]].sum()
        <= int(budget * drawn.rows.sum() * (1 + ROUNDING))
    )
    greedy = value[Knapsack(*drawn, WASTE).select(budget)].sum()
    assert best - value.max() <= greedy <= best + 1e-9


def test_a_label_that_does_not_pay_is_left_out() -> None:
    """1 of 5,000 rows has it: (1 + lambda) 1 - lambda 5000 < 0."""
    rare = Items(np.array([0, 0]), np.array([1, 4000]), np.array([5000]))
    np.testing.assert_array_equal(Knapsack(*rare, WASTE).select(100), [False, True])


def test_all_that_pays_is_kept_however_many_rows_there_are() -> None:
    """Where a quotient, multiplied back, may be short of a whole number by far more than 1e-6."""
    random = np.random.default_rng(1)
    for _ in range(100):
        rows = random.integers(10**9, 10**10, 7)
        cluster = random.integers(7, size=90).astype(np.int32)
        knapsack = Knapsack(cluster, np.ones(90, np.int32), rows, 0)
        assert knapsack.select(knapsack.everything).all()
