import numpy as np
import pytest

from logitsieve.index_builder import fitting
from logitsieve.index_builder.fit.frequency import fit_frequency
from logitsieve.index_builder.fitting import TARGET, heldout_sample
from tests.index_builder.clustered import make_inputs


def test_ids_come_by_how_often_they_are_a_label() -> None:
    _, inputs = make_inputs(depth=8)
    made = fit_frequency(inputs)
    counts = np.bincount(inputs.labels[:, :5].ravel(), minlength=200)
    order = sorted(range(200), key=lambda word: (-counts[word], word))
    np.testing.assert_array_equal(made.arrays["ids"], order)
    assert made.arrays["ids"].dtype == np.int32
    assert made.summary == {"seen": (counts > 0).sum()}


def test_n_is_the_least_that_suffices() -> None:
    _, inputs = make_inputs()
    made = fit_frequency(inputs)
    _, labels = heldout_sample(inputs)

    def shares(n: int) -> tuple[float, float]:
        found = np.isin(labels, made.arrays["ids"][:n])
        return found[:, 0].mean(), found.mean()

    n = int(made.knobs["n"])
    assert 1 < n < 200
    assert min(shares(n)) >= TARGET > min(shares(n - 1))


def test_labels_are_counted_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    _, inputs = make_inputs()
    whole = fit_frequency(inputs)
    assert len(inputs.labels) < fitting.COUNTED_ROWS
    monkeypatch.setattr(fitting, "COUNTED_ROWS", 100)
    again = fit_frequency(inputs)
    np.testing.assert_array_equal(whole.arrays["ids"], again.arrays["ids"])
