from typing import NamedTuple

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from logitsieve.heads import Softmax
from logitsieve.index_builder.fit.sketch import Widths
from logitsieve.kernels.compile import kernel
from logitsieve.kernels.intervals.intervals import (
    COARSE,
    KNOWN,
    MOST,
    begin,
    compute,
    intervals_at,
    refine_batch,
)
from logitsieve.kernels.intervals.sums import LIFTED, scale_of, split_sums, sum_all, write_interval
from logitsieve.kernels.simd.pointers import int64_pointer, keep_alive, nowhere, pointer, size_of
from logitsieve.kernels.sketch.sketch import sketch_descriptor
from logitsieve.kernels.topk.descriptor import widen_hidden
from logitsieve.kernels.topk.merge import HIGH, LOW
from tests.oracle import logits64
from tests.synthetic import encode, make_hidden, rotated


@kernel(
    "(int64, float32[::1], int32[::1], int32[::1], float64[::1], int32[::1], int32[::1], float64,"
    " float64[:,::1], float64[::1])"
)
def sums_of(
    address, hidden, places, edited, values, refined, computed, inverse, sums, log_z
):  # fmt: skip
    """Fill log_z, and sums [1 + 3 N, 3] of all rows, then beside the N rows computed.

    The largest known logit, or NaN where the sketch says too little.
    """
    descriptor = int64_pointer(address)
    size = size_of(intervals_at(descriptor, nowhere(), pointer(places)))
    scratch = np.empty(size, np.float64)
    intervals = intervals_at(descriptor, pointer(scratch), pointer(places))
    norm = widen_hidden(descriptor, pointer(hidden), intervals.wide)
    most = np.nan
    if norm >= 0 and begin(
        descriptor, intervals, pointer(hidden), norm, pointer(edited), pointer(values),
        0, edited.size, 0.0,
    ):  # fmt: skip
        for i in range(refined.size):
            intervals.batch[0] = places[refined[i]]
            if intervals.states[intervals.batch[0]] == COARSE:
                refine_batch(descriptor, intervals, 1)
        for i in range(computed.size):
            if intervals.states[places[computed[i]]] != KNOWN:
                compute(descriptor, intervals, computed[i])
        scale = scale_of(intervals, inverse)
        if scale.lift <= LIFTED:
            most = intervals.state[MOST]
            total = sum_all(descriptor, intervals, scale)
            sums[0, 0], sums[0, 1], sums[0, 2] = total
            write_interval(scale, total, pointer(log_z))
            for i in range(computed.size):
                row = int(computed[i])
                three = split_sums(descriptor, intervals, scale, row, intervals.logits[row])
                for side in range(3):
                    place = 1 + 3 * i + side
                    sums[place, 0] = three[side].estimate
                    sums[place, 1], sums[place, 2] = three[side].low, three[side].high
    keep_alive(scratch)
    keep_alive(places)
    keep_alive(edited)
    keep_alive(values)
    return most


class Found(NamedTuple):
    """Sums of a row of hidden, each (estimate, low, high), and log Z likewise."""

    most: float
    every: np.ndarray
    beside: np.ndarray  # [N, 3, 3]: before, rest, unsure
    log_z: np.ndarray


def sums_by(
    softmax: Softmax,
    arrays: dict[str, np.ndarray],
    hidden: np.ndarray,
    inverse: float,
    refined: np.ndarray,
    computed: np.ndarray,
    edits: dict[int, float],
) -> Found | None:
    """None where the sketch says too little."""
    descriptor = sketch_descriptor(softmax.descriptor, arrays)
    places = np.argsort(arrays["order"]).astype(np.int32)
    edited, values = np.array(list(edits), np.int32), np.array(list(edits.values()), np.float64)
    sums, log_z = np.full((1 + 3 * len(computed), 3), np.nan), np.empty(4)
    rows = refined.astype(np.int32), computed.astype(np.int32)
    most = sums_of.entry()(
        descriptor.ctypes.data, hidden, places, edited, values, *rows, inverse, sums, log_z
    )
    if np.isnan(most):
        return None
    return Found(most, sums[0], sums[1:].reshape(-1, 3, 3), log_z)


def sketch_with(softmax: Softmax, widths: Widths, share: float) -> dict[str, np.ndarray]:
    V, D = softmax.weight.shape
    turning, stretch = rotated(softmax, make_hidden(64, D), max(1, int(share * D)))
    order = np.random.default_rng(1).permutation(V).astype(np.int32)
    return encode(softmax, turning, widths, order, stretch)


@given(
    vocab_size=st.integers(1, 900),
    dim=st.integers(1, 70),
    repeated=st.sampled_from([1, 1, 7]),
    length=st.sampled_from([0.01, 0.3, 1, 3, 10, 60]),
    inverse=st.sampled_from([1e-3, 0.3, 1.0, 1.0, 4.0, 50.0]),
    shift=st.sampled_from([0.0, 0.0, 1e4, -1e4]),
    widths=st.sampled_from([Widths(16, 64), Widths(32, 128)]),
    share=st.sampled_from([0.3, 1]),
    refined=st.sampled_from([0, 0.2, 1]),
    edits=st.sampled_from([0, 0, 3]),
    seed=st.integers(0, 1 << 30),
)
def test_the_true_sums_are_within_their_bounds(
    vocab_size: int,
    dim: int,
    repeated: int,
    length: float,
    inverse: float,
    shift: float,
    widths: Widths,
    share: float,
    refined: float,
    edits: int,
    seed: int,
) -> None:
    """Rows `repeated` give ties at the limits; `shift` moves all logits."""
    random = np.random.default_rng(seed)
    rows = -(-vocab_size // repeated)
    weight = np.repeat(random.standard_normal((rows, dim)), repeated, axis=0)[:vocab_size]
    bias = np.repeat(random.standard_normal(rows), repeated)[:vocab_size] + shift
    softmax = Softmax(weight.astype(np.float32), bias.astype(np.float32))
    arrays = sketch_with(softmax, widths, share)
    hidden = (length / np.sqrt(dim) * random.standard_normal(dim)).astype(np.float32)
    logits = logits64(softmax.weight, softmax.bias, hidden[None])[0]
    changed = {
        int(row): random.choice([-np.inf, logits[row] + 0.5, logits.max() - 1])
        for row in random.permutation(vocab_size)[: min(edits, vocab_size - 1)]
    }
    logits[list(changed)] = list(changed.values())
    chosen = random.permutation(vocab_size)
    computed = chosen[np.isfinite(logits[chosen])][:12]
    found = sums_by(
        softmax, arrays, hidden, inverse, chosen[: int(refined * vocab_size)], computed, changed
    )
    if found is None:
        return
    assert found.most == logits.max()
    true = np.exp(((logits - found.most) * inverse).astype(np.longdouble))
    off, least = 1e-12, 1e-300
    assert found.every[1] <= true.sum() * (1 + off)
    assert true.sum() <= found.every[2] * (1 + off)
    log_z = float(np.log(true.sum())) + found.most * inverse
    assert found.log_z[LOW] <= log_z <= found.log_z[HIGH]
    places = np.arange(vocab_size)
    for row, (before, rest, unsure) in zip(computed, found.beside, strict=True):
        first = (logits > logits[row]) | ((logits == logits[row]) & (places < row))
        ahead, behind = true[first].sum(), true[~first].sum()
        assert before[1] <= ahead * (1 + off) + least
        assert ahead <= (before[2] + unsure[2]) * (1 + off) + least
        assert rest[1] <= behind * (1 + off) + least
        assert behind <= (rest[2] + unsure[2]) * (1 + off) + least
        assert unsure[1] <= true.sum() * (1 + off) - before[1] - rest[1] + off
