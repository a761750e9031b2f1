from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from logitsieve.heads import HEADS
from logitsieve.index_builder.config import BuildConfig
from logitsieve.index_builder.fit_inputs import FitInputs
from logitsieve.index_builder.fit_screen import FixedBudget, fit_screen, plain_centroids
from logitsieve.index_builder.partition import route
from tests.index_builder.clustered import make_exact, make_material

CONFIG = BuildConfig(clusters=10, budget=12.0, rounds=3, steps=40, batch_rows=128, seed=5)


@pytest.fixture(scope="module")
def material() -> FitInputs:
    return make_material(rows=2000)[1]


def ignore(stage: str, done: int, total: int) -> None:
    pass


def written(arrays: Mapping[str, np.ndarray], material: FitInputs) -> float:
    """Candidates a row of the contexts that were fitted, on average."""
    sizes = np.diff(arrays["offsets"])
    return float(sizes[route(material.train, arrays["centroids"])].mean())


def test_equal_inputs_give_equal_arrays(material: FitInputs) -> None:
    first, again = (fit_screen(material, CONFIG, ignore) for _ in range(2))
    assert first.arrays.keys() == {"centroids", "offsets", "ids"}
    for name, array in first.arrays.items():
        np.testing.assert_array_equal(array, again.arrays[name])
    assert first.summary == again.summary
    other = fit_screen(material, BuildConfig(**{**vars(CONFIG), "seed": 6}), ignore)
    assert not np.array_equal(first.arrays["centroids"], other.arrays["centroids"])


def test_the_best_round_is_kept(material: FitInputs) -> None:
    screen = fit_screen(material, CONFIG, ignore)
    badness = [entry["badness"] for entry in screen.history]
    assert len(badness) == CONFIG.rounds + 1
    assert screen.best_round == int(np.argmin(badness))
    keep = screen.partition.knapsack.select(12)
    assert screen.partition.heldout_loss(keep) == pytest.approx(min(badness))


def test_training_beats_plain_clusters() -> None:
    """Where contexts do not fall into as many groups as there are clusters."""
    _, material = make_material(rows=4000, heldout=1000, topics=100, noise=1.0)
    screen = fit_screen(material, CONFIG, ignore)
    assert screen.best_round > 0
    assert screen.history[screen.best_round]["badness"] < 0.95 * screen.history[0]["badness"]


def test_no_rounds_is_plain_k_means(material: FitInputs) -> None:
    screen = fit_screen(material, BuildConfig(**{**vars(CONFIG), "rounds": 0}), ignore)
    for name, array in screen.compared["plain k-means"].items():
        np.testing.assert_array_equal(array, screen.arrays[name])


@pytest.mark.parametrize(("labels", "budget", "filled_up"), [(5, 12.0, 0.0), (64, 10.0, 1.0)])
def test_the_budget_holds_for_the_lists_as_written(
    labels: int, budget: float, filled_up: float
) -> None:
    """But for what fills up the shortest of them."""
    _, material = make_material(rows=2000, depth=64)
    config = replace(CONFIG, labels=labels, budget=budget)
    screen = fit_screen(material, config, ignore)
    candidates = written(screen.arrays, material)
    assert 8 < candidates <= budget + filled_up
    assert screen.summary["candidates"] == pytest.approx(candidates)


def test_what_fills_up_short_lists_is_counted(material: FitInputs) -> None:
    screen = fit_screen(material, replace(CONFIG, budget=1.0), ignore)
    assert screen.summary["candidates"] == pytest.approx(written(screen.arrays, material))
    assert (np.diff(screen.arrays["offsets"]) >= 5).all()


def test_without_a_budget_every_label_seen_is_kept(material: FitInputs) -> None:
    config = BuildConfig(clusters=10, rounds=1, steps=5, batch_rows=64, waste_weight=0)
    screen = fit_screen(material, config, ignore)
    keep = screen.partition.knapsack.select(screen.partition.knapsack.everything)
    assert keep.all()
    assert FixedBudget(None).plan(screen.plain).budget is None


def test_scaled_centroids_route_as_unit_ones(material: FitInputs) -> None:
    norms = np.linalg.norm(plain_centroids(material, CONFIG, 10), axis=1)
    np.testing.assert_allclose(norms, norms[0], rtol=1e-5)


def test_the_arrays_serve() -> None:
    softmax, material = make_material()
    screen = fit_screen(material, CONFIG, ignore)
    exact = make_exact(softmax)
    head = HEADS["screen"].from_arrays(softmax, screen.arrays, fallback=exact, threads=1, knobs={})
    hidden = material.sample
    right = (head.topk(hidden, 1).ids == exact.topk(hidden, 1).ids).mean()
    assert right > 0.9


def test_more_clusters_than_contexts() -> None:
    _, material = make_material(rows=30, heldout=20)
    screen = fit_screen(material, BuildConfig(clusters=100, rounds=1, steps=2), ignore)
    assert 1 <= screen.summary["clusters"] <= 30
    assert (np.diff(screen.arrays["offsets"]) >= 5).all()
