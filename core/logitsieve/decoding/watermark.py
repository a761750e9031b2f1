"""Detect a watermark: tell whether a text was drawn with a key.

A draw takes the id with the largest x_i / T + G_i, where G_i = -log E_i and E_i is exponential. In
a text drawn with other noise, the key's E of each id is exponential too. Then u = e^-E is uniform,
and the sum of -log(1 - u) over n tokens has the distribution Gamma(n, 1). Draws with the key prefer
ids with a small E, which have large terms.
"""

from collections.abc import Sequence
from math import exp, expm1, lgamma, log
from typing import NamedTuple

import numpy as np

from logitsieve.api.checks import INT32_MAX, whole
from logitsieve.api.watermark import WatermarkKey
from logitsieve.kernels.sampling.gumbel import gumbel_noise


class Detection(NamedTuple):
    """The evidence that a text was drawn with a key."""

    score: float  # the sum over tokens of -log(1 - u)
    p_value: float  # chance of at least this score without the key; 0 below 5e-324
    tokens: int  # scored ones: all but the first `width` and those after a repeated context


def detect_watermark(key: WatermarkKey, ids: Sequence[int]) -> Detection:
    """Score the ids of a text, best without its prompt, which adds noise; or InvalidRequest."""
    text = [whole("ids", one, 0, INT32_MAX) for one in ids]
    after: dict[tuple[int, ...], int] = {}  # the first id after each context
    for end in range(key.width, len(text)):
        after.setdefault(tuple(text[end - key.width : end]), text[end])
    score, noise = 0.0, np.empty((1, 1))
    for context, one in after.items():
        gumbel_noise(key.seed_after(context), 0, np.array([[one]], np.int32), noise)
        score -= log(-expm1(-exp(-noise[0, 0])))
    return Detection(score, gamma_tail(len(after), score), len(after))


def gamma_tail(count: int, score: float) -> float:
    """Return P(X >= score) for X ~ Gamma(count, 1), as a sum of Poisson terms."""
    if score <= 0:
        return 1.0
    terms = np.array([k * log(score) - lgamma(k + 1) for k in range(count)])
    return min(1.0, exp(float(np.logaddexp.reduce(terms)) - score))
