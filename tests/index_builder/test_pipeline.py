import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.index_builder import BuildConfig, pipeline
from logitsieve.index_builder.config import ScreenConfig
from logitsieve.index_builder.contexts import Contexts, open_contexts
from logitsieve.index_builder.fitting import BuildInputs, FitInputs, FitResult
from logitsieve.index_builder.pipeline import prepare
from logitsieve.index_builder.screen.partition import Partition
from logitsieve.index_builder.screen.spherical_kmeans import spherical_kmeans
from tests.index_builder.clustered import make_contexts
from tests.refusals import refused
from tests.synthetic import make_head, make_softmax

CONFIG = BuildConfig(clusters=8, rounds=1, steps=10, batch_rows=64, clusters_tried=(6, 12))
ROWS, DIM = 300_000, 64


def test_other_heads_are_fitted_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fit_other(inputs: FitInputs) -> FitResult:
        return FitResult({}, {"clusters": inputs.config.clusters}, {})

    monkeypatch.setitem(pipeline.FITS, "other", fit_other)
    train, heldout = Contexts([make_contexts(1500)]).split()
    given: Any = {"target": {"p1": 0.5}, "best_effort": True, "config": CONFIG}
    inputs = BuildInputs(softmax=make_softmax(120, 16), train=train, heldout=heldout, **given)
    fitted, *rest = pipeline._fit(inputs, ("full", "screen", "other"), tmp_path)
    assert list(fitted) == ["screen", "other"]
    assert rest == ["full", {}]  # no other head proves its answers
    assert fitted["other"].summary["clusters"] == CONFIG.clusters


def test_exact_comes_first_and_each_head_once() -> None:
    assert pipeline.check_heads(["svd", "full", "svd"], targeted=False) == ("full", "svd")


def resident_anonymous() -> int:
    """Bytes of this process that no file backs."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) << 10
    pytest.skip("the system does not tell anonymous memory apart")


@pytest.mark.parametrize("row", [3, 1030, 2650])
def test_a_context_that_is_too_large_is_named_by_its_own_row(tmp_path: Path, row: int) -> None:
    """Also one that is held out."""
    softmax = make_softmax(vocab_size=90, dim=16)
    hidden_states = make_contexts(2700)
    hidden_states[row] = 1e38
    train, heldout = Contexts([hidden_states[:1000], hidden_states[1000:]]).split()
    inputs = BuildInputs(softmax=softmax, train=train, heldout=heldout.spread(200, 20))
    with refused(f"contexts[{row}]"):
        prepare(inputs, 5, tmp_path)


def test_there_are_no_more_labels_than_words(tmp_path: Path) -> None:
    train, heldout = Contexts([make_contexts(40)]).split()
    softmax = make_softmax(vocab_size=3, dim=16)
    inputs = prepare(BuildInputs(softmax=softmax, train=train, heldout=heldout), 5, tmp_path)
    assert (inputs.labels.shape, inputs.heldout_labels.shape) == ((36, 3), (4, 3))


def test_memory_does_not_grow_with_the_contexts(tmp_path: Path) -> None:
    """Contexts of 73 MiB as float32, fitted in less than half of that."""
    random = np.random.default_rng(1)
    for number in range(10):
        shard = random.standard_normal((ROWS // 10, DIM), np.float32)
        np.save(tmp_path / f"{number:05}.npy", shard.astype(np.float16))
    del shard
    config = BuildConfig(sample_mib=4)
    softmax = make_softmax(vocab_size=80, dim=DIM)
    make_head("full", softmax).warm()
    spherical_kmeans(make_contexts(100, dim=DIM), 4, config, seed=1)
    before, resident = resident_anonymous(), []
    tracemalloc.start()
    train, heldout = open_contexts(tmp_path, DIM).split()
    given: Any = {"config": config, "progress": lambda *_: resident.append(resident_anonymous())}
    unprepared = BuildInputs(softmax=softmax, train=train, heldout=heldout, **given)
    inputs = prepare(unprepared, 5, tmp_path)
    centroids = spherical_kmeans(inputs.sample, 16, ScreenConfig(), seed=1)
    partition = Partition(inputs, centroids, 5)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert partition.pairs.rows.sum() == train.rows
    as_float32 = ROWS * DIM * 4
    assert peak < as_float32 / 2
    assert max(resident) - before < as_float32 / 2
