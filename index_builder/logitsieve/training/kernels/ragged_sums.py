"""The sampled softmax of rows with their own candidates: forward, and gradients of classes.

One pass over a row's candidates computes logits, log Z and the gradient by the hidden state. Sums
are rescaled at each larger logit (Milakov and Gimelshein 2018).

Shape letters: N = P + E terms, pairs first.
"""

from __future__ import annotations

from math import exp, inf, log, sqrt

import numpy as np

from logitsieve.api.results import Float64, Int64
from logitsieve.kernels.compile import inline, kernel
from logitsieve.kernels.simd.dots import dots_1x4, four_from, row_of
from logitsieve.kernels.simd.lanes import LANES, load, multiply_add, splat_like, store
from logitsieve.kernels.simd.pointers import keep_alive, pointer, shift

MOST, TOTAL = 0, 1  # a row's sums: the largest term, and the sum of e^(x - most)
TERM = 0xFFFFFFFF  # bits of a key that number its term; the id is above them
LEAST_NORM = 1e-12  # as in torch.nn.functional.normalize


@inline
def add_four(out, W, i, j, k, m, a, b, c, e, dim):
    """out += a W[i] + b W[j] + c W[k] + e W[m], where i, j, k, m are offsets of rows."""
    wa, wb = splat_like(out, a), splat_like(out, b)
    wc, we = splat_like(out, c), splat_like(out, e)
    full = dim - dim % LANES
    for d in range(0, full, LANES):
        total = multiply_add(load(W, i + d), wa, load(out, d))
        total = multiply_add(load(W, j + d), wb, total)
        total = multiply_add(load(W, k + d), wc, total)
        store(out, d, multiply_add(load(W, m + d), we, total))
    for d in range(full, dim):
        out[d] += a * W[i + d] + b * W[j + d] + c * W[k + d] + e * W[m + d]


@inline
def multiply(out, factor, dim):
    for d in range(dim):
        out[d] *= factor


@inline
def clear(out, dim):
    for d in range(dim):
        out[d] = 0.0


@inline
def squared_norm(w, dim):
    return float(dots_1x4(w, 0, 0, 0, 0, w, dim)[0])


@inline
def is_among(ids, count, class_id):
    for i in range(count):  # noqa: SIM110  # a generator would not compile
        if ids[i] == class_id:
            return True
    return False


@inline
def weigh(x, w, dim, normalised, absolute):
    """Return the logit of a dot product, and the factor of w in its gradient."""
    factor = 1.0
    if normalised:
        factor = 1.0 / max(sqrt(squared_norm(w, dim)), LEAST_NORM)
    x *= factor
    if absolute and x <= 0:
        return -x, -factor if x < 0 else 0.0  # torch's |x| has the gradient 0 at 0
    return x, factor


@inline
def add_terms(h, W, bias, biased, ids, log_weights, targets, form, y, factors, out, sums, sizes):
    """Fill y with `count` weighted logits; add e^(y - most) dx/dh to out."""
    count, n_targets, dim, wants = sizes
    normalised, absolute = form
    for first in range(0, count, 4):
        most = sums[MOST]
        for i in range(first, min(first + 4, count)):
            factors[i] = 0.0
        p0, p1, p2, p3 = four_from(first, count)
        i, j, k, m = ids[p0] * dim, ids[p1] * dim, ids[p2] * dim, ids[p3] * dim
        dots = dots_1x4(W, i, j, k, m, h, dim)
        for n in range(min(4, count - first)):
            place = first + n
            class_id = ids[place]
            x = float(dots[n])
            if biased:
                x += bias[class_id]
            x, factors[place] = weigh(x, shift(W, class_id * dim), dim, normalised, absolute)
            y[place] = x + log_weights[place]
            if is_among(targets, n_targets, class_id):
                y[place] = -inf
            most = max(most, y[place])
        if most == -inf:
            continue
        if most > sums[MOST]:
            shrunk = exp(sums[MOST] - most)
            sums[TOTAL] *= shrunk
            if wants:
                multiply(out, shrunk, dim)
            sums[MOST] = most
        e0 = exp(y[p0] - most)
        e1 = exp(y[p1] - most) if first + 1 < count else 0.0
        e2 = exp(y[p2] - most) if first + 2 < count else 0.0
        e3 = exp(y[p3] - most) if first + 3 < count else 0.0
        sums[TOTAL] += (e0 + e1) + (e2 + e3)
        if wants:
            e0, e1, e2, e3 = e0 * factors[p0], e1 * factors[p1], e2 * factors[p2], e3 * factors[p3]
            add_four(out, W, i, j, k, m, e0, e1, e2, e3, dim)


@inline
def finish(y, count, most, total, less):
    """Replace y by e^(y - most) / total - less, the loss's gradient by the logit."""
    for i in range(count):
        y[i] = exp(y[i] - most) / total - less


def ragged_forward(
    hidden: np.ndarray, weight: np.ndarray, bias: np.ndarray, pairs: Int64, offsets: Int64,
    ids: Int64, log_weights: Float64, normalised: bool, absolute: bool, wants: bool,
    losses: Float64, coefficients: Float64, factors: Float64, d_hidden: np.ndarray, start: int,
    stop: int,
) -> None:  # fmt: skip
    """Fill losses [B], coefficients [N] and factors [N] of rows start .. stop-1.

    Row r of hidden [B, D] has the terms pairs[r] .. pairs[r+1]-1, its targets, and P + offsets[r]
    .. P + offsets[r+1]-1, its candidates, of ids [N] and log_weights [N]. bias is [V], or [0] for
    none. A coefficient is the loss's gradient by the logit; the logit's gradient by h is a factor
    times w. If `wants`, d_hidden [B, D] is filled with the loss's gradient by hidden.
    """
    dim, first = hidden.shape[1], pairs[hidden.shape[0]]
    form, biased = (normalised, absolute), bias.size > 0
    state = np.empty(2)
    sums, all_y, all_factors = pointer(state), pointer(coefficients), pointer(factors)
    W, b, all_ids, all_weights = pointer(weight), pointer(bias), pointer(ids), pointer(log_weights)
    for row in range(start, stop):
        h, out = row_of(pointer(hidden), row, dim), row_of(pointer(d_hidden), row, dim)
        sums[MOST], sums[TOTAL] = -inf, 0.0
        if wants:
            clear(out, dim)
        begin, n_targets = pairs[row], pairs[row + 1] - pairs[row]
        targets, y, factor = shift(all_ids, begin), shift(all_y, begin), shift(all_factors, begin)
        lw = shift(all_weights, begin)
        sizes = (n_targets, 0, dim, wants)
        add_terms(h, W, b, biased, targets, lw, targets, form, y, factor, out, sums, sizes)
        mean = 0.0
        for i in range(n_targets):
            mean += y[i] / n_targets
        at, count = first + offsets[row], offsets[row + 1] - offsets[row]
        sizes = (count, n_targets, dim, wants)
        more, more_factors = shift(all_y, at), shift(all_factors, at)
        candidates, lw = shift(all_ids, at), shift(all_weights, at)
        add_terms(
            h, W, b, biased, candidates, lw, targets, form, more, more_factors, out, sums, sizes
        )
        most, total = sums[MOST], sums[TOTAL]
        losses[row] = log(total) + most - mean
        finish(y, n_targets, most, total, 1.0 / n_targets)
        finish(more, count, most, total, 0.0)
        if wants:
            multiply(out, 1.0 / total, dim)
            for i in range(n_targets):
                w = targets[i] * dim
                add_four(out, W, w, w, w, w, -factor[i] / n_targets, 0.0, 0.0, 0.0, dim)
    keep_alive(state)


def ragged_rows(
    hidden: np.ndarray, weight: np.ndarray, keys: Int64, starts: Int64, rows: Int64,
    coefficients: Float64, normalised: bool, values: np.ndarray, start: int, stop: int,
) -> None:  # fmt: skip
    """Fill rows start .. stop-1 of values [U, D], the gradients by the rows of used classes.

    keys [N] are id * 2^32 + term, ascending; class u has those from starts[u] to starts[u+1]-1.
    rows [N] are the terms' rows of hidden, coefficients [N] their factors.
    """
    dim = hidden.shape[1]
    H, W, all_keys, c = pointer(hidden), pointer(weight), pointer(keys), pointer(coefficients)
    for u in range(start, stop):
        out = row_of(pointer(values), u, dim)
        clear(out, dim)
        end = starts[u + 1]
        for first in range(starts[u], end, 4):
            k0, k1, k2, k3 = four_from(first, end)
            t0, t1 = all_keys[k0] & TERM, all_keys[k1] & TERM
            t2, t3 = all_keys[k2] & TERM, all_keys[k3] & TERM
            c1 = c[t1] if first + 1 < end else 0.0
            c2 = c[t2] if first + 2 < end else 0.0
            c3 = c[t3] if first + 3 < end else 0.0
            r0, r1, r2, r3 = rows[t0] * dim, rows[t1] * dim, rows[t2] * dim, rows[t3] * dim
            add_four(out, H, r0, r1, r2, r3, c[t0], c1, c2, c3, dim)
        if normalised:
            w = shift(W, (all_keys[starts[u]] >> 32) * dim)
            square = max(squared_norm(w, dim), LEAST_NORM * LEAST_NORM)
            along = float(dots_1x4(w, 0, 0, 0, 0, out, dim)[0]) / square
            add_four(out, w, 0, 0, 0, 0, -along, 0.0, 0.0, 0.0, dim)


_FORWARD = (
    "({0}[:,::1], {0}[:,::1], {0}[::1], int64[::1], int64[::1], int64[::1], float64[::1], boolean,"
    " boolean, boolean, float64[::1], float64[::1], float64[::1], {0}[:,::1], int64, int64)"
)
_ROWS = (
    "({0}[:,::1], {0}[:,::1], int64[::1], int64[::1], int64[::1], float64[::1], boolean,"
    " {0}[:,::1], int64, int64)"
)
FORWARD = {name: kernel(_FORWARD.format(name))(ragged_forward) for name in ("float32", "float64")}
ROWS = {name: kernel(_ROWS.format(name))(ragged_rows) for name in ("float32", "float64")}
