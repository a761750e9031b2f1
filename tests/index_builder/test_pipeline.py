from __future__ import annotations

from pathlib import Path

import faiss
import pytest
import torch

from logitsieve.api.errors import InvalidRequest
from logitsieve.heads import Softmax
from logitsieve.index_builder import BuildConfig, pipeline
from logitsieve.index_builder.data.contexts import Contexts
from logitsieve.index_builder.fitting import FitInputs, FitResult
from tests.index_builder.clustered import make_contexts
from tests.synthetic import make_softmax

CONFIG = BuildConfig(
    clusters=8, budget=20.0, rounds=1, steps=10, batch_rows=64, clusters_tried=(6, 12)
)


@pytest.fixture(scope="module")
def softmax() -> Softmax:
    return make_softmax(vocab_size=120, dim=16)


def test_with_a_target_every_other_head_is_fitted_too(
    softmax: Softmax, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fit_other(inputs: FitInputs) -> FitResult:
        return FitResult({}, {"clusters": inputs.config.clusters}, {})

    monkeypatch.setitem(pipeline.FITS, "other", fit_other)
    train, heldout = Contexts([make_contexts(1500)]).split()
    inputs = pipeline.BuildInputs(
        softmax=softmax,
        train=train,
        heldout=heldout,
        target={"p1": 0.5},
        best_effort=True,
        config=CONFIG,
    )
    fitted, fallback = pipeline._fit(inputs, ("exact", "screen", "other"), tmp_path)
    assert list(fitted) == ["screen", "other"]
    assert fallback == ""  # no head but `exact` proves its answers
    assert fitted["other"].summary["clusters"] == CONFIG.clusters


def test_exact_comes_first_and_each_head_once() -> None:
    assert pipeline.check_heads(["svd", "exact", "svd"], targeted=False) == ("exact", "svd")


@pytest.mark.parametrize(
    ("heads", "targeted", "field"),
    [(["scren"], False, "heads"), (["certified"], True, "target_precision")],
)
def test_heads_that_cannot_be_built(heads: list[str], targeted: bool, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        pipeline.check_heads(heads, targeted)
    assert caught.value.field == field


def test_threads_are_put_back() -> None:
    before = torch.get_num_threads(), faiss.omp_get_max_threads()
    with pipeline._threads(before[0] + 1):
        assert torch.get_num_threads() == faiss.omp_get_max_threads() == before[0] + 1
    assert (torch.get_num_threads(), faiss.omp_get_max_threads()) == before
