"""No attack finds a weight below that of its row, nor a log Z outside its interval."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logitsieve.heads import CertifiedHead, Softmax
from logitsieve.index_builder.fit_certified import Widths, encode, rotation
from logitsieve.kernels.compile import kernel
from logitsieve.kernels.sampling.envelope import (
    EXACT,
    FAR,
    envelope_at,
    envelope_room,
    fine_weight,
    places_of,
    refine_listed,
    row_at,
    weigh_all,
    write_log_z,
)
from logitsieve.kernels.simd.dots import row_of, widen_row
from logitsieve.kernels.simd.pointers import int64_pointer, keep_alive, pointer
from tests.oracle import logits64
from tests.synthetic import basis_of, make_hidden


@kernel(
    "(int64, float32[:,::1], float64, boolean, int32[::1], float64[::1],"
    " float64[:,::1], float64[::1])"
)
def weigh(address, hidden, inverse, fine, places, values, by_row, found):
    """by_row [3, V]: weights, those of the fine codes, states; found: top, the three of log Z."""
    descriptor = int64_pointer(address)
    size = places_of(descriptor)
    scratch, states = (
        np.empty(envelope_room(descriptor, size), np.float64),
        np.empty(size, np.uint8),
    )
    scratch[:] = np.nan
    envelope = envelope_at(descriptor, pointer(scratch), pointer(states), size, fine)
    h = row_of(pointer(hidden), 0, hidden.shape[1])
    norm = np.sqrt(widen_row(h, envelope.wide, hidden.shape[1]))
    scale, _ = weigh_all(
        descriptor, envelope, h, norm, inverse, pointer(places), pointer(values), places.size
    )
    log_z = np.empty(3)
    write_log_z(envelope, scale, pointer(log_z))
    found[0], found[1], found[2], found[3] = scale.top, log_z[0], log_z[1], log_z[2]
    for place in range(by_row.shape[1]):
        row = row_at(descriptor, envelope, place)
        by_row[0, row] = envelope.tree.weights[place]
        by_row[2, row] = states[place]
        envelope.places[0] = place
        refine_listed(descriptor, envelope, 1)
        by_row[1, row] = fine_weight(envelope, scale, 0)
    beyond = 0.0
    for place in range(by_row.shape[1], size):
        beyond += envelope.tree.weights[place]
    keep_alive(scratch)
    keep_alive(states)
    keep_alive(places)
    keep_alive(values)
    keep_alive(log_z)
    return beyond


def repeated(random: np.random.Generator, V: int, D: int) -> np.ndarray:
    rows: np.ndarray = np.repeat(random.standard_normal((-(-V // 9), D)), 9, axis=0)[:V]
    return rows


def spiked(random: np.random.Generator, V: int, D: int) -> np.ndarray:
    """One large coordinate a row, so that eight bits say nothing of the others."""
    weight = random.standard_normal((V, D))
    weight[np.arange(V), random.integers(0, D, V)] *= 1e4
    return weight


MATRICES: dict[str, Callable[[np.random.Generator, int, int], np.ndarray]] = {
    "gaussian": lambda random, V, D: random.standard_normal((V, D)),
    "equal rows": repeated,
    "mixed norms": lambda random, V, D: (
        random.standard_normal((V, D)) * 10.0 ** random.integers(-42, 4, (V, 1))
    ),
    "spiked": spiked,
    "zeros": lambda random, V, D: np.zeros((V, D)),
}
BIASES: dict[str, Callable[[np.random.Generator, int], np.ndarray]] = {
    "none": lambda random, V: np.zeros(V),
    "small": lambda random, V: random.standard_normal(V),
    "+-1e4": lambda random, V: random.choice([-1e4, 1e4], V),
    "one huge": lambda random, V: np.where(np.arange(V) == V // 2, 1e30, 0.0),
    "all but one far below": lambda random, V: np.where(np.arange(V) == V // 2, 0.0, -1e30),
}


def contexts(softmax: Softmax, head: CertifiedHead, random: np.random.Generator) -> np.ndarray:
    """[6, D], some of which look for the worst of the bound."""
    inverse = np.linalg.pinv(basis_of(head._arrays))
    weight = softmax.weight.astype(np.float64)
    row = weight[random.integers(len(weight))] / np.maximum(np.abs(weight).max(), 1e-300)
    turned = row @ inverse
    turned[: random.integers(1, softmax.dim + 1)] = 0
    left = inverse @ turned  # whose coordinates a sketch leaves out of the row
    plain = random.standard_normal(softmax.dim)
    return np.stack([plain, 30 * plain, left, -left, row, np.zeros(softmax.dim)])


def edits(
    random: np.random.Generator, kind: str, logits: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Rising ids and what their logits are instead; at least one id remains."""
    size = len(logits)
    best_first = np.argsort(-logits)
    if kind == "none" or size == 1:
        ids = np.empty(0, np.int64)
    elif kind == "best banned":
        ids = best_first[: max(1, size // 3)]
    elif kind == "all but one banned":
        ids = np.delete(np.arange(size), random.integers(size))
    else:
        ids = random.choice(size, size if kind == "all changed" else size // 2, replace=False)
    ids = np.sort(ids)
    values = np.full(len(ids), -np.inf)
    if kind in ("changed", "all changed"):
        far = random.choice([0.0, 5.0, -1e4, 1e4, 3.4e38, -3.4e38], len(ids))
        values = np.clip(logits[ids] + far, -3.4e38, 3.4e38)
    return ids.astype(np.int32), values


KINDS = ["none", "best banned", "all but one banned", "changed", "all changed"]


@pytest.mark.parametrize("matrix", MATRICES)
@settings(max_examples=25, deadline=None)
@given(
    vocab_size=st.integers(1, 700) | st.sampled_from([1, 2, 15, 16, 17, 4096, 4100]),
    dim=st.integers(1, 90),
    bias=st.sampled_from(sorted(BIASES)),
    exponent=st.sampled_from([-38, -10, -2, 0, 0, 0, 1, 3, 10, 22]),
    temperature=st.sampled_from([1e-5, 1e-3, 0.1, 0.7, 1.0, 3.0, 1e4]),
    kind=st.sampled_from(KINDS),
    widths=st.sampled_from([Widths(16, 64), Widths(32, 64), Widths(48, 128)]),
    seed=st.integers(0, 1 << 30),
)
def test_weights_are_never_below_their_rows(
    matrix: str,
    vocab_size: int,
    dim: int,
    bias: str,
    exponent: int,
    temperature: float,
    kind: str,
    widths: Widths,
    seed: int,
) -> None:
    random = np.random.default_rng(seed)
    weight = MATRICES[matrix](random, vocab_size, dim).astype(np.float32)
    softmax = Softmax(weight, BIASES[bias](random, vocab_size).astype(np.float32))
    order = random.permutation(vocab_size).astype(np.int32)
    seen = make_hidden(20, dim, seed=9)
    head = CertifiedHead(softmax, encode(softmax, rotation(softmax, seen), widths, order))
    hidden = (contexts(softmax, head, random) * 10.0**exponent).astype(np.float32)
    largest = np.linalg.norm(weight.astype(np.float64), axis=1).max()
    fits = np.linalg.norm(hidden.astype(np.float64), axis=1) * largest < 5e37
    hidden, inverse = hidden[fits & np.isfinite(hidden).all(axis=1)], 1.0 / temperature
    for row, logits in zip(hidden, logits64(softmax.weight, softmax.bias, hidden), strict=True):
        ids, values = edits(random, kind, logits)
        logits[ids] = values
        for fine in (False, True):
            places = ids if fine else head._places[ids]
            by_row, found = np.empty((3, vocab_size)), np.empty(4)
            beyond = weigh(head._address, row[None], inverse, fine, places, values, by_row, found)
            assert beyond == 0
            judge(logits * inverse, ids, by_row, *found)


def judge(
    scaled: np.ndarray,
    ids: np.ndarray,
    by_row: np.ndarray,
    top: float,
    log_z: float,
    low: float,
    high: float,
) -> None:
    weights, allowed, states = by_row
    least = np.exp(scaled - top)
    exact = states == EXACT
    rounding = 2.0**-24 * least + 2.0**-149  # of weights that are float32
    assert (np.abs(weights - least) <= rounding)[exact].all()
    assert (weights >= least)[~exact].all()
    others = np.delete(np.arange(len(scaled)), ids)
    assert (allowed >= least)[others].all()
    assert exact[ids].all()
    assert least.max() >= np.exp(-FAR - 5)
    truth = scaled.max() + np.log(np.exp(scaled - scaled.max()).sum())
    assert low <= truth <= high
    assert log_z == pytest.approx(truth, rel=1e-6, abs=high - max(low, -1e300))
