from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.heads import Softmax
from logitsieve.index_builder import fitting
from logitsieve.index_builder.contexts import Contexts
from logitsieve.index_builder.fitting import (
    TIMINGS,
    BuildInputs,
    cheapest,
    exact_labels,
    heldout_sample,
    least_reaching,
    sample_rows,
    shared_heads,
)
from logitsieve.index_builder.reduction import augmented
from logitsieve.index_builder.workers import Workers
from logitsieve.utils.stored import StoredMatrix
from tests.index_builder.building import Watched
from tests.index_builder.clustered import make_contexts, make_inputs
from tests.synthetic import make_head, make_hidden, make_softmax


def test_the_sample_is_spread_and_drawn() -> None:
    rows = sample_rows(1000, 90, seed=4)
    assert len(set(rows)) == 90
    assert (np.diff(rows) > 0).all()
    assert np.bincount(rows // 100).tolist() == pytest.approx([9] * 10, abs=1)
    assert len(set(np.diff(rows))) > 2
    np.testing.assert_array_equal(rows, sample_rows(1000, 90, seed=4))
    np.testing.assert_array_equal(sample_rows(5, 90, seed=4), np.arange(5))


def test_the_least_setting_finds_the_share_of_the_best_label_and_of_all() -> None:
    needed = np.arange(1, 101)[:, None]
    assert least_reaching(needed, 0.99) == 99
    assert least_reaching(needed, 0.985) == 99
    assert least_reaching(needed, 1.0) == 100
    assert least_reaching(np.full((7, 3), 4), 0.5) == 4
    first, others = np.full((100, 1), 50), np.full((100, 4), 2)
    assert least_reaching(np.hstack([first, others]), 0.5) == 50
    assert least_reaching(np.hstack([others, first]), 0.9) == 50


def test_judges_are_spread_and_carry_their_own_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    _, inputs = make_inputs(heldout=90)
    monkeypatch.setattr(fitting, "JUDGED", 30)
    hidden_states, labels = heldout_sample(inputs)
    rows = np.arange(30) * 3
    np.testing.assert_array_equal(hidden_states, inputs.heldout.take(rows))
    np.testing.assert_array_equal(labels, inputs.heldout_labels[rows, :5])


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e18, 1e36])
def test_augmented_rows_turn_logits_into_angles(scale: float) -> None:
    small, hidden_states = make_softmax(), make_hidden(20)
    softmax = Softmax(small.weight * np.float32(scale), small.bias * np.float32(scale))
    rows = augmented(softmax).astype(np.float64)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-5)
    queries = np.hstack([hidden_states, np.ones((20, 1)), np.zeros((20, 1))])
    logits = hidden_states.astype(np.float64) @ small.weight.T.astype(np.float64) + small.bias
    ratio = (queries @ rows.T) / logits
    np.testing.assert_allclose(ratio, np.median(ratio), rtol=1e-2)


def test_rows_of_zeros_are_augmented() -> None:
    zeros = Softmax(np.zeros((4, 3), np.float32), np.zeros(4, np.float32))
    np.testing.assert_array_equal(augmented(zeros), np.eye(1, 5, 4).repeat(4, axis=0))


@pytest.mark.parametrize("seed", range(20))
def test_a_choice_does_not_hang_on_the_noise_of_a_timer(seed: int) -> None:
    """Load only ever adds, now to one and now to the other."""
    random = np.random.default_rng(seed)
    true = {"near": 10.0, "nearest": 9.0, "far": 1.0}

    def us(name: str) -> float:
        return true[name] + float(random.exponential(4.0) * random.integers(2))

    apart = {"near": 100.0, "far": 116.0}
    assert cheapest(apart, us) == "near"  # whatever the times
    assert cheapest({"nearest": 100.0, "near": 114.0, "far": 200.0}, us) == "nearest"
    assert cheapest({"near": 100.0, "nearest": 114.0, "far": 200.0}, us) == "nearest"


def test_choices_take_turns_and_only_near_ones_are_timed() -> None:
    asked: list[str] = []

    def us(name: str) -> float:
        asked.append(name)
        return 1.0

    assert cheapest({"a": 2.0, "b": 1.0, "c": 1.1}, us) == "b"
    assert asked == ["b", "c"] * TIMINGS
    assert cheapest({"a": 1.1, "b": 1.0}) == "b"


@pytest.mark.parametrize("kind", ["F32", "F16"])
@pytest.mark.parametrize("workers", [0, 3])
def test_labels_are_the_exact_ones_of_ties_too(tmp_path: Path, workers: int, kind: str) -> None:
    softmax = make_softmax(vocab_size=1100, dim=16)
    weight, bias = softmax.weight.copy(), softmax.bias.copy()
    weight[256:296], bias[256:296] = weight[216:256], bias[216:256]
    stored = weight.astype(np.float16) if kind == "F16" else weight
    softmax = Softmax(StoredMatrix(kind, stored), bias)
    hidden_states, full = make_contexts(2500), make_head("full", softmax)
    contexts, file = Contexts([hidden_states[:1030], hidden_states[1030:]]), tmp_path / "labels.npy"
    with ThreadPoolExecutor(3) as pool:
        by = Workers(pool if workers else None)
        shared = shared_heads(softmax, {})["full"]
        inputs = BuildInputs(softmax=softmax, train=contexts, heldout=contexts, workers=by)
        labels = exact_labels(inputs, shared, contexts, 20, file, "label")
    np.testing.assert_array_equal(labels, full.topk(hidden_states, 20).ids)


def test_the_disk_holds_the_labels_before_any_is_written(tmp_path: Path) -> None:
    """A full disk is then an OSError; a write to a hole in a mapped file would be a SIGBUS."""
    softmax, file = make_softmax(vocab_size=90, dim=16), tmp_path / "labels.npy"
    held: list[bool] = []

    def watch(call: Any) -> None:
        held.append(file.stat().st_blocks * 512 >= file.stat().st_size)
        raise InterruptedError

    contexts, workers = Contexts([make_contexts(5000)]), Workers(Watched(watch), tmp_path)
    shared = shared_heads(softmax, {})["full"]
    inputs = BuildInputs(softmax=softmax, train=contexts, heldout=contexts, workers=workers)
    with pytest.raises(InterruptedError):
        exact_labels(inputs, shared, contexts, 20, file, "label")
    assert held == [True]
