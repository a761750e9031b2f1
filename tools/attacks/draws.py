"""Attacks on `sample`: only ids that constraints and filters leave, with probabilities of theirs.

No log p is above 0, and the probabilities of a row's different ids add up to at most 1. Where the
distribution is known to the last bit, log p is the truth rounded down: for the head `full`, and
where filters leave a few ids; the id that wins is judged in law.py.

Shape letters: B batch rows, V vocabulary, N draws.
"""

from decimal import Decimal
from functools import partial
from typing import Any

import numpy as np
from numpy.random import Generator

from logitsieve.api.constraints import Constraints
from logitsieve.api.mask import packed
from logitsieve.api.results import Bool, Float64, SampleReply
from logitsieve.decoding import sampler
from logitsieve.kernels.compile import kernel
from logitsieve.kernels.sampling.gumbel import noise_of
from tests.oracle import best, edited, logits64
from tools.attacks.decoders import KINDS, decoding
from tools.attacks.judge import LONG, above_one, decimal_log_prob, log_probs, log_z, rounded_down
from tools.attacks.tally import Tally

ROWS, SAMPLES, CALLS = 8, 16, 6
LEAST = 2.0**-40  # of min-p's product: closer than this to the limit either is right

# By the best ids, however small a softmax is and many the draws.
vars(sampler).update(PRODUCTS_A_DRAW=0, LEAST_PRODUCTS=0, MOST_OPEN=np.inf)


def drawn(random: Generator, kind: str) -> Tally:
    """Draws of both heads under random constraints, temperatures and filters."""
    softmax, hidden_states = KINDS[kind](random, ROWS)
    logits, tally = logits64(softmax.weight, softmax.bias, hidden_states), Tally()
    with decoding(softmax, random) as decoder:
        for _ in range(CALLS):
            constraints, left = constrained(random, logits)
            temperature = float(random.choice([0.0, 1e-3, 0.7, 1.0, 1.0, 3.0, 1e4]))
            top_k = int(random.choice([0, 0, 1, 5]))
            min_p = float(random.choice([0.0, 0.0, 0.1]))
            seeds = random.integers(0, 2**63, ROWS).astype(np.uint64)
            how: Any = {"temperature": temperature, "top_k": top_k, "min_p": min_p}
            how |= {"seeds": seeds, "head": str(random.choice(["full", "sketch"]))}
            reply = decoder.sample(hidden_states, SAMPLES, constraints=constraints, **how)
            remaining = possible(left, temperature, top_k, min_p)
            scale = 1.0 / temperature if temperature else 1.0
            known = reply.answer.normalizer in ("candidates", "full") and not min_p
            tally.join(judged(reply, np.where(remaining, left, -np.inf), scale, known))
    return tally


def constrained(random: Generator, logits: Float64) -> tuple[Constraints, Float64]:
    """Random lists for all rows, and what they make of the logits."""
    V = logits.shape[1]
    banned = random.permutation(V)[: random.integers(0, max(1, V // 2))]
    biased = random.permutation(V)[: random.integers(0, 5)]
    bias = random.choice([0.0, 1e-6, -30.0, 30.0, 3e38, -3e38], len(biased))
    allowed = None
    if random.random() < 0.3:
        allowed = random.permutation(np.setdiff1d(np.arange(V), banned))[: random.integers(1, 9)]
    lists = {"banned": banned.tolist(), "biased": biased.tolist(), "bias": bias.tolist()}
    constraints = Constraints(**lists, allowed=None if allowed is None else allowed.tolist())
    if random.integers(2):  # a mask says what is left
        allowed = np.setdiff1d(np.arange(V) if allowed is None else allowed, banned)
        mask = packed(np.isin(np.arange(V), allowed)[None])[0]
        del lists["banned"]
        constraints = Constraints(**lists, mask=mask)
        lists["banned"] = banned.tolist()
    instead = dict(zip(lists["biased"], lists["bias"], strict=True))
    rows = [edited(row, banned=lists["banned"], allowed=allowed, biased=instead) for row in logits]
    return constraints, np.stack(rows)


def possible(left: Float64, temperature: float, top_k: int, min_p: float) -> Bool:
    """[B, V] ids that may be drawn."""
    remaining = left > -np.inf
    if top_k or temperature == 0:
        ranked = best(left, min(left.shape[1], top_k if temperature else 1))
        kept = np.zeros_like(remaining)
        np.put_along_axis(kept, ranked, True, axis=1)
        remaining &= kept
    if min_p and temperature:
        apart = (left.astype(LONG) - left.max(axis=1)[:, None]) / LONG(temperature)
        remaining &= np.exp(apart) >= min_p * (1 - LEAST)
    return remaining


def judged(reply: SampleReply, left: Float64, scale: float, known: bool) -> Tally:
    """`left` are the logits of the ids that may be drawn; `known` to the last bit."""
    rows, printed = np.arange(len(left))[:, None], reply.log_probs
    logits = left[rows, reply.ids]
    first = np.stack([np.isin(np.arange(len(row)), np.unique(row, True)[1]) for row in reply.ids])
    above = above_one(np.where(first, printed, -np.inf))
    faults = {
        "an id that may not be drawn": logits == -np.inf,
        "log p above 0": printed > 0,
        "no log p": np.isnan(printed),
        "probabilities above 1": np.repeat(above[:, None], logits.shape[1], axis=1),
    }
    if known:
        good, near = rounded_down(log_probs(logits, log_z(left, scale), scale), printed)
        for row, place in zip(*np.nonzero(near), strict=True):
            truth = decimal_log_prob(left[row], int(reply.ids[row, place]), scale)
            good[row, place] = Decimal(float(printed[row, place])) <= truth
        faults["log p not rounded down"] = ~good

    def describe(place: int) -> str:
        names = [name for name, fault in faults.items() if fault[place].any()]
        return f"{reply.answer.head} row {place}: {', '.join(names)}, ids {reply.ids[place]}"

    return Tally().add(np.any(list(faults.values()), axis=(0, 2)), describe)


@kernel("(uint64, uint64, uint64, float64[::1])")
def fill_noise(seed: Any, step: Any, draw: Any, noise: Float64) -> None:
    """Fill noise [V] of one draw, in the arithmetic of the draws."""
    for row in range(noise.size):
        noise[row] = noise_of(seed, step, draw, row)


ATTACKS = {f"draws-{kind}": partial(drawn, kind=kind) for kind in KINDS}
