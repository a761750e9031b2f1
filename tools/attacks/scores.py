"""Attacks on `score` and on the log Z of `topk`, judged in long double and by Decimal.

Claims: an interval contains log Z; a log-probability is never above 0, nor above the truth; where
`proven` is set, it is the float32 nearest to the truth or the one before; and the probabilities of
all ids add up to at most 1.

Shape letters: B batch rows, D hidden size, V vocabulary, T scored ids.
"""

from decimal import Decimal
from functools import partial

import numpy as np
from numpy.random import Generator

from logitsieve.api.constraints import Constraints
from logitsieve.api.keywords import NormalizerName
from logitsieve.api.results import Answer, Bool, Float32, Float64
from logitsieve.decoding import LocalDecoder
from tests.oracle import logits64
from tools.attacks.decoders import KINDS, decoding
from tools.attacks.judge import (
    LONG,
    LogZ,
    Long,
    above_one,
    decimal_log_prob,
    log_probs,
    log_z,
    rounded_down,
)
from tools.attacks.tally import Tally

ROWS = 8
NORMALIZERS: tuple[NormalizerName, ...] = ("full", "sketch")
ULP = np.float32(2.0**-23)


def scored(random: Generator, kind: str) -> Tally:
    """All ids of a few rows, by both normalizers, with and without constraints."""
    softmax, hidden_states = KINDS[kind](random, ROWS)
    logits, tally = logits64(softmax.weight, softmax.bias, hidden_states), Tally()
    allowed = random.permutation(softmax.vocab_size)[: random.integers(1, 6)]
    with decoding(softmax, random) as decoder:
        for ids in (None, allowed):
            left = logits if ids is None else np.full_like(logits, -np.inf)
            if ids is not None:
                left[:, ids] = logits[:, ids]
            constraints = None if ids is None else Constraints(allowed=[int(i) for i in ids])
            for normalizer in NORMALIZERS:
                tally.join(judged(decoder, hidden_states, left, normalizer, constraints))
    return tally


def judged(
    decoder: LocalDecoder,
    hidden_states: Float32,
    logits: Float64,
    normalizer: NormalizerName,
    constraints: Constraints | None,
) -> Tally:
    token_ids = np.tile(np.arange(logits.shape[1]), (len(logits), 1))
    reply = decoder.score(hidden_states, token_ids, normalizer=normalizer, constraints=constraints)
    printed, proven, tally = reply.log_probs, reply.answer.proven, Tally()
    truth_z = log_z(logits)
    truth = log_probs(logits, truth_z)
    wrong, parts = misprinted(logits, truth, printed)
    faults: dict[str, Bool] = {
        "log p above 0": np.asarray((printed > 0).any(axis=1)),
        "log p not rounded down": np.asarray(wrong & proven),
        "probabilities above 1": above_one(printed),
        "log Z outside its interval": outside(reply.answer, truth_z),
    }
    only = (logits > -np.inf).sum(axis=1) == 1
    faults["log p of the only id is not 0"] = only & proven & (printed.max(axis=1) != 0)
    if normalizer == "full":
        faults["not proven"] = np.asarray(~proven)

    def describe(place: int) -> str:
        names = [name for name, fault in faults.items() if fault[place]]
        sizes = f"V={logits.shape[1]} D={hidden_states.shape[1]}"
        return f"{normalizer} {sizes} row {place}: {', '.join(names)}"

    tally.add(np.any(list(faults.values()), axis=0), describe)
    tally.tighten(np.where(proven[:, None], parts, np.nan))
    return tally


def misprinted(
    logits: Float64, truth: Long, printed: Float32, scale: float = 1.0
) -> tuple[Bool, Float64]:
    """[B] whether a row has a number that is not the truth rounded down, as `rounded_down` has it.

    And how far [B, T] they are below, in parts of the most that is allowed. Targets are all ids.
    """
    possible = logits > -np.inf
    good, near = rounded_down(truth, printed)
    good = np.where(possible, good, printed == -np.inf)
    for row, i in zip(*np.nonzero(near & possible), strict=True):
        good[row, i] = Decimal(float(printed[row, i])) <= decimal_log_prob(logits[row], i, scale)
    with np.errstate(invalid="ignore", divide="ignore"):
        ulps = np.maximum(np.abs(truth) * ULP, LONG(1e-45))
        parts = np.where(possible, (truth - printed) / ulps / 1.5, np.nan)
    return np.asarray(~good.all(axis=1)), parts.astype(np.float64)


def outside(answer: Answer, log_z: LogZ) -> Bool:
    """[B] whether log Z is not where the answer says that it is.

    An exact one is off by its rounding to float32, and of the two numbers that it is added up from.
    """
    truth, value = log_z.value(), answer.log_z
    assert value is not None
    off, wrong = np.abs(truth) * LONG(2) ** -58, np.zeros(len(truth), np.bool_)
    if answer.log_z_low is not None and answer.log_z_high is not None:
        low, high = answer.log_z_low.astype(LONG), answer.log_z_high.astype(LONG)
        wrong |= (truth < low - off) | (truth > high + off)
        wrong |= (value < answer.log_z_low) | (value > answer.log_z_high)
    rounded = np.spacing(np.abs(value)) + LONG(2) ** -40 * (np.abs(log_z.top) + log_z.rest)
    return np.asarray(wrong | (answer.proven & (np.abs(value - truth) > rounded)))


ATTACKS = {f"score-{kind}": partial(scored, kind=kind) for kind in KINDS}
