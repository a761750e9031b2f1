from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from logitsieve.index_builder.config import BuildConfig
from logitsieve.index_builder.fitting import FitInputs
from logitsieve.index_builder.screen.partition import Partition
from logitsieve.index_builder.screen.training import (
    FittedScreen,
    fixed_plan,
    plain_centroids,
    train_fixed,
)
from tests.index_builder.clustered import make_inputs, routed

CONFIG = BuildConfig(clusters=10, budget=12.0, rounds=3, steps=40, batch_rows=128, seed=5)


@pytest.fixture(scope="module")
def inputs() -> FitInputs:
    return make_inputs(rows=2000)[1]


def written(arrays: Mapping[str, np.ndarray], inputs: FitInputs) -> float:
    """Candidates a row of the contexts that were fitted, on average."""
    sizes = np.diff(arrays["offsets"])
    return float(sizes[routed(inputs.train, arrays["centroids"])].mean())


def test_equal_inputs_give_equal_arrays(inputs: FitInputs) -> None:
    first, again = (train_fixed(replace(inputs, config=CONFIG)) for _ in range(2))
    assert first.arrays.keys() == {"centroids", "offsets", "ids"}
    np.testing.assert_equal(first.arrays, again.arrays)
    assert first.summary == again.summary
    other = train_fixed(replace(inputs, config=BuildConfig(**{**vars(CONFIG), "seed": 6})))
    assert not np.array_equal(first.arrays["centroids"], other.arrays["centroids"])


def trained(inputs: FitInputs, rounds: int) -> FittedScreen:
    return train_fixed(replace(inputs, config=replace(CONFIG, rounds=rounds)))


def loss(screen: FittedScreen) -> float:
    return screen.partition.heldout_loss(screen.partition.knapsack.select(12))


def test_training_beats_plain_clusters_and_keeps_its_best_round(inputs: FitInputs) -> None:
    # Contexts of the first do not fall into as many groups as there are clusters.
    _, noisy = make_inputs(rows=4000, heldout=1000, topics=100, noise=1.0)
    assert loss(trained(noisy, CONFIG.rounds)) < 0.95 * loss(trained(noisy, 0))
    # More rounds begin with the same ones.
    screens = [trained(inputs, rounds) for rounds in range(CONFIG.rounds + 1)]
    losses = [loss(screen) for screen in screens]
    assert losses == sorted(losses, reverse=True)
    assert screens[-1].best_round == losses.index(losses[-1])
    assert screens[-1].plan.cost == pytest.approx(losses[-1])
    screen = trained(inputs, 0)
    plain = Partition(inputs, plain_centroids(replace(inputs, config=CONFIG), 10), CONFIG.labels)
    np.testing.assert_equal(plain.arrays(plain.knapsack.select(12)), screen.arrays)


@pytest.mark.parametrize(("labels", "budget", "fills"), [(5, 12.0, False), (64, 10.0, True)])
def test_the_budget_holds_for_written_lists(labels: int, budget: float, fills: bool) -> None:
    """But for what fills up the shortest of them."""
    _, inputs = make_inputs(rows=2000, depth=64)
    config = replace(CONFIG, labels=labels, budget=budget)
    screen = train_fixed(replace(inputs, config=config))
    partition, share_C = screen.partition, screen.partition.pairs.rows / inputs.train.rows
    size_C = partition.sizes(partition.knapsack.select(budget))
    filled_up = np.maximum(5 - size_C, 0) @ share_C
    assert (filled_up > 0) == fills
    assert 8 < size_C @ share_C <= budget
    candidates = written(screen.arrays, inputs)
    assert candidates == pytest.approx(size_C @ share_C + filled_up)
    assert screen.summary["candidates"] == pytest.approx(candidates)


def test_what_fills_up_short_lists_is_counted(inputs: FitInputs) -> None:
    screen = train_fixed(replace(inputs, config=replace(CONFIG, budget=1.0)))
    assert screen.summary["candidates"] == pytest.approx(written(screen.arrays, inputs))
    assert (np.diff(screen.arrays["offsets"]) >= 5).all()


def test_without_a_budget_and_with_more_clusters_than_contexts(inputs: FitInputs) -> None:
    config = BuildConfig(clusters=10, rounds=1, steps=5, batch_rows=64, waste_weight=0)
    screen = train_fixed(replace(inputs, config=config))
    keep = screen.partition.knapsack.select(screen.partition.knapsack.everything)
    assert keep.all()
    assert fixed_plan(screen.partition, None).budget is None
    _, inputs = make_inputs(rows=30, heldout=20)
    screen = train_fixed(replace(inputs, config=BuildConfig(clusters=100, rounds=1, steps=2)))
    assert 1 <= screen.summary["clusters"] <= 30
    assert (np.diff(screen.arrays["offsets"]) >= 5).all()
