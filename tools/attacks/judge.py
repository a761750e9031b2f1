"""The truth by brute force: `dot64` in float64, log Z in long double, Decimal where it is close.

On x86 a long double has 64 bits, so a log-probability is off by some 2^-60 of itself. What is
nearer to a boundary than DOUBT is computed again by Decimal, whose exp and ln are exact to DIGITS.

Shape letters: B batch rows, D hidden size, V vocabulary, K answers.
"""

from decimal import Decimal, localcontext
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from logitsieve.api.results import Bool, Float32, Float64, Int64
from tests.oracle import dot64

Long = NDArray[np.longdouble]
LONG = np.longdouble
DOUBT = LONG(2.0) ** -56  # of a number: long doubles are nearer than this to the truth
DIGITS = 60


def best(weight: Float32, bias: Float32, hidden_states: Float32, k: int) -> tuple[Int64, Float64]:
    """ids and logits [B, K] of the exact top k.

    Only rows that a product in any order leaves in doubt are computed in the order of `dot64`.
    """
    wide, answers = weight.astype(np.float64), list[tuple[Int64, Float64]]()
    length, most = np.linalg.norm(wide, axis=1).max(), np.abs(bias).max()
    for h in hidden_states:
        with np.errstate(over="ignore"):
            rough = wide @ h.astype(np.float64) + bias
        norm = float(np.linalg.norm(h.astype(np.float64))) * length
        off = (len(h) + 40) * 2.0**-51 * (norm + most) + 1e-300
        ids = np.flatnonzero(rough >= np.partition(rough, -k)[-k] - 2 * off)
        logits = dot64(weight[ids], h) + bias[ids]
        order = np.argsort(-logits, kind="stable")[:k]
        answers.append((ids[order], logits[order]))
    return np.stack([ids for ids, _ in answers]), np.stack([logits for _, logits in answers])


class LogZ(NamedTuple):
    """log Z = scale x top + rest, of the sum of e^{scale x logit}."""

    top: Float64  # [B] the largest logit
    rest: Long  # [B] log of the sum of all e^{scale (logit - top)}

    def value(self, scale: float = 1.0) -> Long:
        return self.top.astype(LONG) * LONG(scale) + self.rest


def log_z(logits: Float64, scale: float = 1.0) -> LogZ:
    """log Z of rows [B, V]; -inf logits have no weight."""
    places = np.argmax(logits, axis=1)[:, None]
    top = np.take_along_axis(logits, places, axis=1)
    weights = np.exp((logits.astype(LONG) - top) * LONG(scale))
    np.put_along_axis(weights, places, LONG(0), axis=1)
    return LogZ(top[:, 0], np.log1p(np.sort(weights, axis=1).sum(axis=1)))


def log_probs(logits: Float64, log_z: LogZ, scale: float = 1.0) -> Long:
    """log p of logits [B, T] of rows with that log Z."""
    apart = logits.astype(LONG) - log_z.top[:, None]
    with np.errstate(invalid="ignore"):
        found: Long = apart * LONG(scale) - log_z.rest[:, None]
    return found


def decimal_log_z(logits_V: Float64, scale: float = 1.0) -> tuple[Decimal, Decimal]:
    """scale x top and the rest of one row's log Z, to DIGITS; equal for equal rows."""
    with localcontext() as context:
        context.prec, context.Emin = DIGITS, -(10**9)
        values, counts = np.unique(logits_V[logits_V > -np.inf], return_counts=True)
        top, factor, total = Decimal(float(values[-1])), Decimal(scale), Decimal(0)
        for value, count in zip(values.tolist(), counts.tolist(), strict=True):
            total += count * ((Decimal(value) - top) * factor).exp()
        return top * factor, total.ln()


def decimal_log_prob(logits_V: Float64, target: int, scale: float = 1.0) -> Decimal:
    """log p of one id of one row, to DIGITS."""
    top, rest = decimal_log_z(logits_V, scale)
    with localcontext() as context:
        context.prec = DIGITS
        return Decimal(float(logits_V[target])) * Decimal(scale) - top - rest


def rounded_down(truth: Long, printed: Float32) -> tuple[Bool, Bool]:
    """Return True where `printed` is the nearest float32 of `truth` or the one before, not above.

    Also where long doubles leave open if it is above.
    """
    off = np.abs(truth) * DOUBT
    nearest = (truth - off).astype(np.float32)
    wide = printed.astype(LONG)
    within = (wide <= truth + off) & (printed >= np.nextafter(nearest, np.float32(-np.inf)))
    return within, within & (wide > truth - off) & (off > 0)


def above_one(printed: Float32) -> Bool:
    """[B] whether the probabilities of rows [B, T] add up to more than long doubles round away."""
    total = np.exp(printed.astype(LONG)).sum(axis=1)
    return np.asarray(total > 1 + LONG(2) ** -60)
