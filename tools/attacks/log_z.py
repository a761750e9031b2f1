"""Attacks on the intervals of log Z in float64, of every pass that computes one.

How tight: the distance of the truth from the middle of an interval, in halves of its width.

Shape letters: B batch rows, V vocabulary.
"""

from functools import partial

import numpy as np
from numpy.random import Generator

from logitsieve.api.results import Bool, Float32, Float64
from logitsieve.heads import Softmax
from logitsieve.heads.full import FullHead
from tests.log_z import interval_of
from tests.oracle import logits64
from tools.attacks import judge
from tools.attacks.decoders import KINDS
from tools.attacks.judge import DOUBT, LONG, Long
from tools.attacks.matrices import sketched
from tools.attacks.tally import Tally

ROWS = 64
LEAST = 1e-200  # of log Z - top: below it an interval begins at 0


def enclosed(random: Generator, kind: str) -> Tally:
    """The passes in float32, float64 and of `sketch`, at several temperatures."""
    softmax, hidden_states = KINDS[kind](random, ROWS)
    logits, tally = logits64(softmax.weight, softmax.bias, hidden_states), Tally()
    full, scale = FullHead(softmax), float(random.choice([1.0, 1.0, 0.3, 1e-4, 100.0]))
    truth = judge.log_z(logits, scale)
    _, _, low, high = full.log_z(hidden_states, scale).T
    tally.join(judged("float64", low, high, truth.rest))
    _, _, low, high = full.quick_log_z(hidden_states, scale).T
    tally.join(judged("float32", low, high, truth.value(scale)))
    tally.join(by_sketch(softmax, hidden_states, truth.value(scale), scale, random))
    return tally


def by_sketch(
    softmax: Softmax, hidden_states: Float32, truth: Long, scale: float, random: Generator
) -> Tally:
    head, tally = sketched(softmax, random).head, Tally()
    for width in (np.inf, 1.0, 0.1, 0.01):
        fields = head.log_z(hidden_states, scale, width=width)
        _, low, high = interval_of(fields, scale).T
        tally.join(judged(f"width {width}", low, high, truth))
    return tally


def judged(name: str, low: Float64, high: Float64, truth: Long) -> Tally:
    """`truth` [B] outside low .. high by more than the judge may be off is wrong.

    NaN bounds nothing: steps of beams are in doubt then.
    """
    tally, off = Tally(), np.abs(truth) * DOUBT
    wrong: Bool = np.asarray((truth < low - off) | (truth > high + off))

    def describe(place: int) -> str:
        return f"{name}: {truth[place]} outside {low[place]!r} .. {high[place]!r}"

    tally.add(wrong, describe)
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        wide = high.astype(LONG) - low
        counted = (wide > 64 * off) & (np.abs(truth) > LEAST)
        parts = np.where(counted, np.abs(2 * truth - low - high) / wide, np.nan)
    tally.tighten(parts[np.isfinite(parts)].astype(np.float64))
    return tally


ATTACKS = {f"log-z-{kind}": partial(enclosed, kind=kind) for kind in KINDS}
