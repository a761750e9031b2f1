from dataclasses import replace
from typing import Any

import numpy as np

from logitsieve.heads import ScreenHead
from logitsieve.index_builder.screen import outside
from logitsieve.index_builder.screen.outside import with_outside
from logitsieve.index_builder.screen.training import train_fixed
from tests.index_builder.clustered import make_inputs
from tests.index_builder.screen.test_training import CONFIG
from tests.synthetic import make_head


def test_log_z_of_unseen_contexts_is_within_its_told_error() -> None:
    inputs = replace(make_inputs(rows=4000, heldout=800)[1], config=CONFIG)
    arrays = with_outside(inputs, train_fixed(inputs).arrays)
    full = make_head("full", inputs.softmax)
    knobs = {"probes": 1.0, "escalate": -1.0, "log_z_error": 1.0}
    head = ScreenHead(inputs.softmax, arrays, fallback=full, knobs=knobs)
    [hidden_states] = inputs.heldout.blocks(800)
    found, true = (
        head.best_with_log_z(hidden_states, 1),
        full.best_with_log_z(hidden_states, 1).log_z[:, 1],
    )
    candidates = ScreenHead(
        inputs.softmax,
        arrays | {"outside_biases": np.full(len(arrays["centroids"]), outside.NO_MASS, np.float32)},
        fallback=full, knobs=knobs,
    ).best_with_log_z(hidden_states, 1).log_z[:, 1]  # fmt: skip
    own = ~found.fallback
    assert own.mean() > 0.9
    errors = (found.log_z[:, 1] - true)[own]
    told = np.sqrt((found.errors[own] ** 2).mean())
    assert 0.5 * told < np.sqrt((errors**2).mean()) < 2 * told
    assert np.abs(errors).mean() < 0.6 * np.abs(candidates - true)[own].mean()


def test_a_part_of_the_contexts_is_fitted_as_if_it_were_all(monkeypatch: Any) -> None:
    inputs = replace(make_inputs(rows=2000)[1], config=CONFIG)
    screen, few = train_fixed(inputs).arrays, inputs.sample[::2].copy()
    half = with_outside(replace(inputs, sample=few), screen)
    products = inputs.softmax.vocab_size * inputs.softmax.dim
    monkeypatch.setattr(outside, "MOST_PRODUCTS", len(few) * products)
    np.testing.assert_equal(with_outside(inputs, screen), half)


def test_clusters_of_few_contexts_share_a_row_and_every_spread_is_positive() -> None:
    inputs = replace(make_inputs(rows=300, heldout=50)[1], config=replace(CONFIG, clusters=40))
    arrays = with_outside(inputs, train_fixed(inputs).arrays)
    rows, counts = np.unique(arrays["outside_rows"], axis=0, return_counts=True)
    assert rows.any(axis=1).all()
    assert counts.max() > 1
    assert (arrays["outside_spreads"] > 0).all()
    assert np.isfinite(arrays["outside_biases"]).all()
