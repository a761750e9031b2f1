from __future__ import annotations

import numpy as np
import pytest

from logitsieve.index_builder import fit_frequency as module
from logitsieve.index_builder.config import BuildConfig
from logitsieve.index_builder.fit_frequency import fit_frequency
from logitsieve.index_builder.fit_result import TARGET, judges
from logitsieve.utils.options import no_progress
from tests.index_builder.clustered import make_material


def test_ids_come_by_how_often_they_are_a_label() -> None:
    _, material = make_material(depth=8)
    made = fit_frequency(material, BuildConfig(), no_progress)
    counts = np.bincount(material.labels[:, :5].ravel(), minlength=200)
    order = sorted(range(200), key=lambda word: (-counts[word], word))
    np.testing.assert_array_equal(made.arrays["ids"], order)
    assert made.arrays["ids"].dtype == np.int32
    assert made.summary == {"seen": (counts > 0).sum()}


def test_n_is_the_least_that_suffices() -> None:
    _, material = make_material()
    made = fit_frequency(material, BuildConfig(), no_progress)
    _, labels = judges(material)

    def shares(n: int) -> tuple[float, float]:
        found = np.isin(labels, made.arrays["ids"][:n])
        return found[:, 0].mean(), found.mean()

    n = int(made.knobs["n"])
    assert 1 < n < 200
    assert min(shares(n)) >= TARGET > min(shares(n - 1))


def test_labels_are_counted_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    _, material = make_material()
    whole = fit_frequency(material, BuildConfig(), no_progress)
    assert len(material.labels) < module.BLOCK_ROWS
    monkeypatch.setattr(module, "BLOCK_ROWS", 100)
    again = fit_frequency(material, BuildConfig(), no_progress)
    np.testing.assert_array_equal(whole.arrays["ids"], again.arrays["ids"])
