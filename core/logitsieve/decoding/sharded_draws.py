"""Draws over shards: by the noise of one softmax, which belongs to the ids of the whole.

Shape letters: B batch rows, K ids of a list, N draws, S shards.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from logitsieve.api.requests import Sampling
from logitsieve.api.results import Bool, Float64, Int32, Int64
from logitsieve.decoding.shards import HALF_PLACE
from logitsieve.kernels.sampling.gumbel import gumbel_noise


class Winners(NamedTuple):
    """The candidates with the largest perturbed logits."""

    places: Int64  # [B, N]
    sure: Bool  # [B] rounding of the logits leaves none of the row's draws open


def winners(ids: Int32, logits: Float64, how: Sampling) -> Winners:
    """The place of each draw's winner among candidates [B, K] or [B, N, K]; -1 for no candidate."""
    rows, scale = len(ids), 1.0 / (how.temperature or 1.0)
    places, sure = np.empty((rows, how.samples), np.int64), np.ones(rows, np.bool_)
    for row in range(rows):
        shape = how.samples, ids.shape[-1]
        listed = np.ascontiguousarray(np.broadcast_to(ids[row], shape))
        noise = np.empty(shape)
        gumbel_noise(how.seeds[row], how.step, listed, noise)
        scaled = np.broadcast_to(logits[row] * scale, shape)
        off = HALF_PLACE * np.where(listed < 0, 0.0, np.abs(scaled))
        values = scaled + noise
        best = places[row] = values.argmax(axis=1)
        draws = np.arange(how.samples)
        least = (values - off)[draws, best]
        values += off
        values[draws, best] = -np.inf
        sure[row] = (values.max(axis=1) < least).all()
    return Winners(places, sure)


class Cut(NamedTuple):
    """How much of each row's list top-p and min-p leave."""

    lengths: Int64  # [B]
    sure: Bool  # [B] neither rounding nor the interval of log Z leaves that open
    ended: Bool  # [B] the list holds all that is left


def cut(logits: Float64, counts: Int64, whole: Bool, how: Sampling, log_z: Float64) -> Cut:
    """Cut lists of falling logits [B, K], counts [B] of them each, by top-p, then by min-p.

    `whole` [B]: the list is all that there is to choose from; elsewhere log Z of all that there is,
    at the temperature, lies between log_z [B, 2].
    """
    scale, inside = 1.0 / (how.temperature or 1.0), np.arange(logits.shape[1]) < counts[:, None]
    top = logits[:, :1] * scale
    weights = np.exp(logits * scale - top)
    largest = np.where(inside, np.abs(logits), 0.0).max(axis=1, keepdims=True)
    off = np.expm1(4 * HALF_PLACE * scale * largest)  # relative, of weights and of their sums
    before, total = np.cumsum(weights, axis=1) - weights, weights.sum(axis=1)[:, None]
    with np.errstate(over="ignore"):
        low, high = np.where(whole[:, None], total, np.exp(log_z - top)).T[:, :, None]
    surely, maybe, likely = inside.copy(), inside.copy(), inside.copy()
    if how.top_p < 1.0:
        surely &= before * (1 + off) < how.top_p * low * (1 - off)
        maybe &= before * (1 - off) < how.top_p * high * (1 + off)
        likely &= before < how.top_p * (low + np.minimum(high, 2 * low)) / 2
    if how.min_p > 0.0:
        surely &= weights * (1 - off) >= how.min_p
        maybe &= weights * (1 + off) >= how.min_p
        likely &= weights >= how.min_p
    surely[:, 0] = maybe[:, 0] = likely[:, 0] = True
    possible = maybe.sum(axis=1)
    return Cut(likely.sum(axis=1), surely.sum(axis=1) == possible, whole | (possible < counts))
