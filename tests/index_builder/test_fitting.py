from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.heads import Head, Softmax
from logitsieve.heads._base.reduction import augmented
from logitsieve.index_builder import fitting
from logitsieve.index_builder.config import BuildConfig, ScreenConfig
from logitsieve.index_builder.data.contexts import Contexts, open_contexts
from logitsieve.index_builder.fitting import (
    BuildInputs,
    fastest_proving,
    heldout_sample,
    least_reaching,
    prepare,
    sample_rows,
)
from logitsieve.index_builder.screen.partition import Partition
from logitsieve.index_builder.screen.spherical_kmeans import spherical_kmeans
from tests.index_builder.clustered import make_contexts, make_exact, make_inputs
from tests.synthetic import make_head, make_hidden, make_softmax

ROWS, DIM = 300_000, 64


def resident_anonymous() -> int:
    """Bytes of this process that no file backs."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) << 10
    pytest.skip("the system does not tell anonymous memory apart")


def test_labels_are_the_exact_ones(tmp_path: Path) -> None:
    softmax = make_softmax(vocab_size=90, dim=16)
    hidden, exact = make_contexts(300), make_exact(softmax)
    train, heldout = Contexts([hidden]).split()
    seen: list[tuple[str, int, int]] = []
    inputs = prepare(
        BuildInputs(
            softmax=softmax, train=train, heldout=heldout, progress=lambda *step: seen.append(step)
        ),
        5,
        tmp_path,
    )
    np.testing.assert_array_equal(inputs.labels, exact.topk(hidden[:270], 5).ids)
    np.testing.assert_array_equal(inputs.heldout_labels, exact.topk(hidden[270:], 10).ids)
    np.testing.assert_array_equal(inputs.sample, hidden[:270])
    assert seen[-1] == ("label held-out", 30, 30)


@pytest.mark.parametrize("row", [3, 1030, 2650])
def test_a_context_that_is_too_large_is_named_by_its_own_row(tmp_path: Path, row: int) -> None:
    """Also one that is held out."""
    softmax = make_softmax(vocab_size=90, dim=16)
    hidden = make_contexts(2700)
    hidden[row] = 1e38
    train, heldout = Contexts([hidden[:1000], hidden[1000:]]).split()
    with pytest.raises(InvalidRequest) as caught:
        prepare(
            BuildInputs(softmax=softmax, train=train, heldout=heldout.spread(200, 20)), 5, tmp_path
        )
    assert caught.value.field == f"contexts[{row}]"


def test_there_are_no_more_labels_than_words(tmp_path: Path) -> None:
    train, heldout = Contexts([make_contexts(40)]).split()
    softmax = make_softmax(vocab_size=3, dim=16)
    inputs = prepare(BuildInputs(softmax=softmax, train=train, heldout=heldout), 5, tmp_path)
    assert inputs.labels.shape == (36, 3)
    assert inputs.heldout_labels.shape == (4, 3)


def test_the_sample_is_spread_and_drawn() -> None:
    rows = sample_rows(1000, 90, seed=4)
    assert len(set(rows)) == 90
    assert (np.diff(rows) > 0).all()
    assert np.bincount(rows // 100).tolist() == pytest.approx([9] * 10, abs=1)
    assert len(set(np.diff(rows))) > 2
    np.testing.assert_array_equal(rows, sample_rows(1000, 90, seed=4))
    np.testing.assert_array_equal(sample_rows(5, 90, seed=4), np.arange(5))


def test_memory_does_not_grow_with_the_contexts(tmp_path: Path) -> None:
    """Contexts of 73 MiB as float32, fitted in less than half of that."""
    random = np.random.default_rng(1)
    for number in range(10):
        shard = random.standard_normal((ROWS // 10, DIM), np.float32)
        np.save(tmp_path / f"{number:05}.npy", shard.astype(np.float16))
    del shard
    config = BuildConfig(sample_mib=4)
    softmax = make_softmax(vocab_size=80, dim=DIM)
    exact = make_exact(softmax)
    exact.warm()
    spherical_kmeans(make_contexts(100, dim=DIM), 4, config, seed=1)
    before, resident = resident_anonymous(), []
    tracemalloc.start()
    train, heldout = open_contexts(tmp_path, DIM, tmp_path).split()
    inputs = prepare(
        BuildInputs(
            softmax=softmax,
            train=train,
            heldout=heldout,
            config=config,
            progress=lambda *step: resident.append(resident_anonymous()),
        ),
        5,
        tmp_path,
    )
    centroids = spherical_kmeans(inputs.sample, 16, ScreenConfig(), seed=1)
    partition = Partition(inputs, centroids, 5)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert partition.pairs.rows.sum() == train.rows
    as_float32 = ROWS * DIM * 4
    assert peak < as_float32 / 2
    assert max(resident) - before < as_float32 / 2


def test_the_least_setting_finds_the_share_asked_for() -> None:
    needed = np.arange(1, 101)[:, None]
    assert least_reaching(needed, 0.99) == 99
    assert least_reaching(needed, 0.985) == 99
    assert least_reaching(needed, 1.0) == 100
    assert least_reaching(np.full((7, 3), 4), 0.5) == 4


def test_the_best_label_counts_alone_and_among_all() -> None:
    first, others = np.full((100, 1), 50), np.full((100, 4), 2)
    assert least_reaching(np.hstack([first, others]), 0.5) == 50
    assert least_reaching(np.hstack([others, first]), 0.9) == 50


def test_judges_are_spread_and_carry_their_own_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    _, inputs = make_inputs(heldout=90)
    monkeypatch.setattr(fitting, "JUDGED", 30)
    hidden, labels = heldout_sample(inputs)
    rows = np.arange(30) * 3
    np.testing.assert_array_equal(hidden, inputs.heldout.take(rows))
    np.testing.assert_array_equal(labels, inputs.heldout_labels[rows, :5])


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e18, 1e36])
def test_augmented_rows_turn_logits_into_angles(scale: float) -> None:
    small, hidden = make_softmax(), make_hidden(20)
    softmax = Softmax(small.weight * np.float32(scale), small.bias * np.float32(scale))
    rows = augmented(softmax).astype(np.float64)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-5)
    queries = np.hstack([hidden, np.ones((20, 1)), np.zeros((20, 1))])
    logits = hidden.astype(np.float64) @ small.weight.T.astype(np.float64) + small.bias
    ratio = (queries @ rows.T) / logits
    np.testing.assert_allclose(ratio, np.median(ratio), rtol=1e-2)


def test_rows_of_zeros_are_augmented() -> None:
    zeros = Softmax(np.zeros((4, 3), np.float32), np.zeros(4, np.float32))
    np.testing.assert_array_equal(augmented(zeros), np.eye(1, 5, 4).repeat(4, axis=0))


def test_the_fallback_is_the_fastest_of_the_heads_that_prove_their_answers() -> None:
    softmax = make_softmax(vocab_size=90, dim=16)
    heads = {name: make_head(name, softmax) for name in ("exact", "certified", "screen")}
    flat = {"exact": [30.0, 20.0, 25.0], "certified": [90.0, 80.0, 99.0]}
    for times, chosen in ((flat, "exact"), ({**flat, "exact": [500.0] * 3}, "certified")):
        clock = {name: list(us) for name, us in times.items()}  # a screen has none

        def us(head: Head, clock: dict[str, list[float]] = clock) -> float:
            return clock[head.name].pop(0)

        assert fastest_proving(heads, us) == chosen
