"""Attacks on `sample`: only ids that constraints and filters leave, with log p of at most 0.

Shape letters: B batch rows, V vocabulary, N draws.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.random import Generator

from logitsieve.api.constraints import Constraints
from logitsieve.api.results import Bool, Float64, SampleReply
from tests.attacks.decoders import KINDS, decoding
from tests.attacks.judge import LONG, exact_logits
from tests.attacks.tally import Tally
from tests.oracle import best, edited

ROWS, SAMPLES, CALLS = 8, 16, 6
LEAST = 2.0**-40  # of min-p's product: closer than this to the limit either is right


def drawn(random: Generator, kind: str) -> Tally:
    """Draws of both heads under random constraints, temperatures and filters."""
    softmax, hidden = KINDS[kind](random, ROWS)
    logits, tally = exact_logits(softmax.weight, softmax.bias, hidden), Tally()
    with decoding(softmax, random) as decoder:
        for _ in range(CALLS):
            constraints, left = constrained(random, logits)
            temperature = float(random.choice([0.0, 1e-3, 0.7, 1.0, 1.0, 3.0, 1e4]))
            top_k = int(random.choice([0, 0, 1, 5]))
            min_p = float(random.choice([0.0, 0.0, 0.1]))
            reply = decoder.sample(
                hidden,
                SAMPLES,
                constraints=constraints,
                seeds=random.integers(0, 2**63, ROWS).astype(np.uint64),
                temperature=temperature,
                top_k=top_k,
                min_p=min_p,
                head=str(random.choice(["exact", "certified"])),
            )
            remaining = possible(left, temperature, top_k, min_p)
            tally.join(judged(reply, remaining))
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


def judged(reply: SampleReply, remaining: Bool) -> Tally:
    tally, rows = Tally(), np.arange(len(remaining))[:, None]
    faults = {
        "an id that may not be drawn": ~remaining[rows, reply.ids],
        "log p above 0": reply.log_probs > 0,
        "no log p": ~np.isfinite(reply.log_probs),
    }

    def describe(place: int) -> str:
        names = [name for name, fault in faults.items() if fault[place].any()]
        return f"{reply.answer.head} row {place}: {', '.join(names)}, ids {reply.ids[place]}"

    tally.add(np.any(list(faults.values()), axis=(0, 2)), describe)
    return tally


ATTACKS = {f"draws-{kind}": partial(drawn, kind=kind) for kind in KINDS}
