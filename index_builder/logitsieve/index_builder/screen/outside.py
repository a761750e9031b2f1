"""Estimates the probability mass outside of a screen's lists, which log Z needs.

Its log is nearly linear in the context h, and fitted as u.h + a for each cluster, by ridge
regression towards a u that all clusters share. A fifth of the contexts is left out, to choose the
penalty and to measure the spread. The error of log Z is the spread times the share of e^(u.h + a)
in Z. Not in the paper.
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from logitsieve.api.results import Float32, Float64, Int32
from logitsieve.heads import Head, ScreenHead
from logitsieve.heads._base.spec import Arrays
from logitsieve.index_builder.fitting import FULL, LABEL_ROWS, FitInputs, shared_heads
from logitsieve.index_builder.workers import Shared
from logitsieve.kernels.topk.merge import VALUE

MOST_PRODUCTS = 1 << 39  # multiplications, which take seconds
MOST_ROWS = 4096
LEAST_ROWS = 40  # contexts of a cluster with a fit; others take the shared u
# Penalties of a squared weight, relative to the mean square of a coordinate. The first keeps u.
PENALTIES = (1e12, 600.0, 60.0, 6.0)
LESS = 0.9  # a smaller penalty must reduce the spread to this part of it
LEFT_OUT = 5  # one context in LEFT_OUT measures the fit
NO_MASS = -1e30
LEAST_SHARE, LEAST_SPREAD = 1e-7, 1e-6  # below float32's rounding of log Z


def with_outside(inputs: FitInputs, arrays: Arrays) -> dict[str, np.ndarray]:

    most = max(LEAST_ROWS, MOST_PRODUCTS // (inputs.vocab_size * inputs.softmax.dim))
    # Kernels need contiguous rows.

    hidden_states = np.ascontiguousarray(inputs.sample[:: -(-len(inputs.sample) // most)])
    full = shared_heads(inputs.softmax, {})[FULL]
    log_z = _log_z(inputs, full, hidden_states)
    clusters, inside = _listed(inputs, full.value, arrays, hidden_states)
    outside = log_z + np.log(-np.expm1(np.minimum(inside - log_z, -LEAST_SHARE)))
    count, dim = arrays["centroids"].shape
    rows = np.zeros((count, dim), np.float32)
    biases, spreads = np.zeros(count, np.float32), np.empty(count, np.float32)
    shared = _shared_row(clusters, hidden_states, outside)
    rest = outside - hidden_states @ shared
    everywhere = float(rest.mean()), max(float(rest.std()), LEAST_SPREAD)
    for cluster in range(count):
        own = np.flatnonzero(clusters == cluster)
        own = own[:: -(-len(own) // MOST_ROWS) or 1]
        if len(own) < LEAST_ROWS:
            rows[cluster], (biases[cluster], spreads[cluster]) = shared, everywhere
            if len(own):
                biases[cluster] = rest[own].mean()
            continue
        fit = _fit(hidden_states[own].astype(np.float64), rest[own])
        rows[cluster], biases[cluster], spreads[cluster] = shared + fit.row, fit.bias, fit.spread
        inputs.progress("log Z", cluster + 1, count)
    return {
        **arrays, "outside_rows": rows, "outside_biases": biases, "outside_spreads": spreads
    }  # fmt: skip


def _log_z(inputs: FitInputs, full: Shared[Head], hidden_states: Float32) -> Float64:
    blocks = (
        hidden_states[start : start + LABEL_ROWS]
        for start in range(0, len(hidden_states), LABEL_ROWS)
    )
    return np.concatenate(list(inputs.workers.map(_log_z_block, ((full, b) for b in blocks))))


def _log_z_block(full: Head, block: Float32) -> Float64:
    return full.best_with_log_z(block, 1).log_z[:, VALUE]


def _listed(
    inputs: FitInputs, full: Head, arrays: Arrays, hidden_states: Float32
) -> tuple[Int32, Float64]:
    count, dim = arrays["centroids"].shape
    none: Mapping[str, np.ndarray] = {
        "outside_rows": np.zeros((count, dim), np.float32),
        "outside_biases": np.full(count, NO_MASS, np.float32),
        "outside_spreads": np.ones(count, np.float32),
    }
    knobs = {"escalate": -1.0, "log_z_error": 1.0}
    head = ScreenHead(inputs.softmax, {**arrays, **none}, fallback=full, knobs=knobs)
    return head.clusters(hidden_states), head.best_with_log_z(hidden_states, 1).log_z[:, VALUE]


def _shared_row(clusters: Int32, hidden_states: Float32, outside: Float64) -> Float64:
    """Return u [D], by ridge regression on differences from the clusters' means."""
    order = np.argsort(clusters, kind="stable")
    starts = np.unique(clusters[order], return_index=True)[1]
    centred, wanted = hidden_states[order].astype(np.float64), outside[order]
    for own in np.split(np.arange(len(order)), starts[1:]):
        centred[own] -= centred[own].mean(axis=0)
        wanted[own] -= wanted[own].mean()
    gram = centred.T @ centred
    penalty = PENALTIES[-1] * float((centred * centred).mean()) + LEAST_SPREAD
    row = np.linalg.solve(gram + penalty * np.eye(len(gram)), centred.T @ wanted)
    return row.astype(np.float64, copy=False)


class _Fit(NamedTuple):
    row: Float64  # [D]
    bias: float
    spread: float


def _fit(hidden_states: Float64, outside: Float64) -> _Fit:
    mean, level = hidden_states.mean(axis=0), float(outside.mean())
    centred, wanted = hidden_states - mean, outside - level
    left_out = np.arange(len(hidden_states)) % LEFT_OUT == 0
    kept, wanted_kept = centred[~left_out], wanted[~left_out]
    gram, moments = kept.T @ kept, kept.T @ wanted_kept
    size = float((kept * kept).mean())
    best: _Fit | None = None
    for penalty in PENALTIES:
        row = np.linalg.solve(gram + penalty * size * np.eye(len(gram)), moments)
        errors = wanted[left_out] - centred[left_out] @ row
        spread = max(float(np.sqrt((errors * errors).mean())), LEAST_SPREAD)
        if best is None or spread < LESS * best.spread:
            best = _Fit(row, level - float(mean @ row), spread)
    assert best is not None
    return best
