"""The coordinates and widths of a sketch; tests/index/test_sketch_rows.py judges its numbers."""

from dataclasses import replace

import numpy as np
import pytest

from logitsieve.heads import SketchHead
from logitsieve.index.sketch_rows import spectral_norms
from logitsieve.index_builder.config import BuildConfig
from logitsieve.index_builder.fit.rotated_rows import factored
from logitsieve.index_builder.fit.sketch import Widths, fastest, fit_sketch
from tests.index_builder.clustered import make_inputs
from tests.synthetic import make_head, make_hidden, make_softmax, rotated


def test_the_rotation_keeps_products_and_balances_rows_and_contexts() -> None:
    softmax = make_softmax(400, 24)
    hidden = (make_hidden(600, 24) * np.linspace(3, 0.1, 24)).astype(np.float32)
    turning, _ = rotated(softmax, hidden, softmax.dim)
    rows, contexts = softmax.weight @ np.linalg.inv(turning), hidden @ turning.T
    np.testing.assert_allclose(rows @ contexts.T, softmax.weight @ hidden.T, rtol=1e-3, atol=1e-3)
    of_rows, of_contexts = (np.square(each).mean(axis=0) for each in (rows, contexts))
    shares = of_rows / of_rows.sum(), of_contexts / of_contexts.sum()
    np.testing.assert_allclose(shares[0], shares[1], atol=0.01)  # the ridge keeps them apart
    assert (np.diff(shares[1]) <= 1e-3).all()


@pytest.mark.parametrize("count", [1, 10, 24])
def test_a_narrow_rotation_leaves_little_outside(count: int) -> None:
    softmax = make_softmax(400, 24)
    scales = np.linspace(3, 0.1, 24)
    hidden = (make_hidden(600, 24) * scales).astype(np.float32)
    turning, stretch = rotated(softmax, hidden, count)
    made = factored(turning, stretch)
    assert made.directions.shape == (count, 24)
    directions = made.directions / made.stretch.astype(np.float64)
    np.testing.assert_allclose(directions @ directions.T, np.eye(count), atol=1e-6)
    np.testing.assert_allclose(made.triangle @ made.directions, turning, atol=1e-5)
    assert not np.triu(made.triangle, 1).any()
    projected = np.eye(24) - directions.T @ directions
    left = [np.square(x @ projected).sum() for x in (softmax.weight / stretch, hidden * stretch)]
    plain = np.eye(24)[:, count:]  # the coordinates that contexts have least of
    others = [np.square(x @ plain).sum() for x in (softmax.weight, hidden)]
    assert left[0] * left[1] <= 0.95 * others[0] * others[1] + 1e-3


@pytest.mark.parametrize("share", [0.3, 2.5])
def test_the_fit_stays_within_its_memory_and_puts_frequent_words_first(share: float) -> None:
    """And computes norms once its widths are chosen."""
    softmax, inputs = make_inputs(vocab_size=300)
    steps: list[tuple[str, int, int]] = []
    config, progress = BuildConfig(sketch_memory=share), lambda *step: steps.append(step)
    made = fit_sketch(replace(inputs, config=config, progress=progress))
    assert [step for step in steps if step[0] == "norms"] == [("norms", 300, 300)]
    norms = spectral_norms(softmax, made.arrays, lambda rows: None)
    np.testing.assert_array_equal(made.arrays["norms"], norms)
    assert np.isfinite(norms).all()
    bytes_a_row = made.summary["coarse"] + made.summary["fine"] + 16
    assert bytes_a_row <= max(share * 4 * softmax.dim, 16 + 64 + 16)
    counts = np.bincount(inputs.labels[:, :5].ravel(), minlength=300)
    assert (np.diff(counts[made.arrays["order"]]) <= 0).all()
    hidden = inputs.heldout.sample(100)
    top = SketchHead(softmax, dict(made.arrays)).topk(hidden, 5)
    np.testing.assert_array_equal(top.ids, make_head("exact", softmax).topk(hidden, 5).ids)


def test_the_search_crosses_widths_that_take_longer_than_narrower_ones() -> None:
    """Rows that pass the coarse codes, and the fine ones, fall only beyond a width of each."""

    def time(widths: Widths) -> float:
        refined = 10_000 if widths.coarse < 200 else 400
        computed = refined if widths.fine < 500 else 40
        return 10_000 * widths.coarse + refined * (100 + widths.fine) + computed * 6000

    assert fastest(time, 1500, 0.3) == Widths(256, 512)
    assert fastest(time, 1500, 0.1) == Widths(16, 512)
