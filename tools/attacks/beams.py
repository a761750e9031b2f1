"""Attacks on `beam_step`: hypotheses whose best pairs are within 1e-7 of ties, and exact ties.

The truth: a pair's rank is (score + log p) / divisor in real numbers, of float32 scores, float64
logits and float64 divisors; equal ranks by the parent, then by the logit, then by the id. A group
that is not proven must be nearly tied, and its order right but for ties within WITHIN. Scores must
not rise above the parent's.

Shape letters: B rows (hypotheses), V vocabulary, G groups, H hypotheses of a group, K pairs.
"""

from decimal import Decimal, localcontext
from fractions import Fraction
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.random import Generator

from logitsieve.api.results import BeamStepReply, Float32, Float64, Int32
from tests.oracle import logits64
from tools.attacks.decoders import KINDS, decoding
from tools.attacks.judge import DIGITS, LONG, Long, decimal_log_z, log_probs, log_z
from tools.attacks.scores import NORMALIZERS
from tools.attacks.tally import Tally
from tools.attacks.topk import around

GROUPS, WITHIN = 16, 1e-7
DOUBT = LONG(2) ** -56
Pair = tuple[int, int]  # the parent's place in its group, the token


def tied(random: Generator, kind: str) -> Tally:
    """Groups of neighbouring contexts, with scores that make their best pairs equal, or nearly."""
    beams_in, beams_out = int(random.integers(2, 5)), int(random.integers(1, 7))
    softmax, hidden_states = KINDS[kind](random, 2)
    hidden_states = np.concatenate(
        [around(hidden_states[0], 2 * GROUPS * beams_in, random), hidden_states]
    )
    hidden_states = hidden_states[random.permutation(len(hidden_states))[: GROUPS * beams_in]]
    if random.random() < 0.2:
        hidden_states[1::2] = hidden_states[::2][: len(hidden_states[1::2])]
    logits = logits64(softmax.weight, softmax.bias, hidden_states)
    truth = log_probs(logits, log_z(logits))
    scores = tying_scores(truth, beams_in, random)
    alpha = float(random.choice([0.0, 0.0, 0.0, 0.6]))
    lengths = np.repeat(random.integers(0, 30, GROUPS), beams_in)
    tally = Tally()
    with decoding(softmax, random) as decoder:
        for normalizer in NORMALIZERS:
            how: Any = {
                "normalizer": normalizer,
                "exact": True,
                "lengths": lengths,
                "length_penalty": alpha,
            }
            how |= {"beams_in": beams_in, "beams_out": beams_out, "eos_ids": [0]}
            reply = decoder.beam_step(hidden_states, scores, **how)
            divisors = np.asarray(((5.0 + lengths + 1) / 6.0) ** alpha, np.float64)
            tally.join(judged(reply, hidden_states, logits, truth, scores, divisors, normalizer))
    return tally


def tying_scores(truth: Long, beams_in: int, random: Generator) -> Float32:
    """[B] scores by which the best or the second best pairs of a group's hypotheses are equal.

    All are near 0, where float32 is fine: so ties are much closer than 1e-7.
    """
    second = min(truth.shape[1] - 1, 1)
    top = -np.sort(-truth, axis=1)[:, : second + 1]
    chosen = top[np.arange(len(top)), random.integers(0, second + 1, len(top))]
    least = chosen.reshape(-1, beams_in).min(axis=1).repeat(beams_in)
    scores: Float32 = (least - chosen).astype(np.float32)
    if random.random() < 0.5:
        steps = random.integers(-2, 3, len(scores))
        scores = (scores + steps * np.spacing(scores)).astype(np.float32)
    return np.minimum(scores, 0)


class Group:
    """The hypotheses of one group, and which of two of their pairs (parent, token) is better."""

    def __init__(
        self,
        hidden_states: Float32,
        logits: Float64,
        truth: Long,
        scores: Float32,
        divisors: Float64,
        equal: float,
    ) -> None:
        self.equal = equal  # ranks of different contexts are so from this close on
        self.hidden_states, self.logits = hidden_states, logits  # [H, D], [H, V]
        self.scores, self.divisors = scores, divisors  # [H]
        self.ranks = (scores.astype(LONG)[:, None] + truth) / divisors[:, None]  # [H, V]
        self._normalized: dict[int, tuple[Decimal, Decimal]] = {}

    def precedes(self, one: Pair, other: Pair) -> bool:
        """By the rank, then the parent, then the logit, then the id."""
        (parent, token), (second, another) = one, other
        if parent == second:
            x, y = self.logits[parent, token], self.logits[parent, another]
            return bool(x > y or (x == y and token < another))
        alike = self.divisors[parent] == self.divisors[second]
        if alike and (self.hidden_states[parent] == self.hidden_states[second]).all():
            x, y = self._exactly(one), self._exactly(other)
            return x - y > -self.equal or (x == y and parent < second)
        gap, off = self.gap(one, other), DOUBT * (abs(self.ranks[one]) + abs(self.ranks[other]))
        if abs(gap + self.equal) > off:
            return bool(gap > -self.equal)
        return self._rank(one) - self._rank(other) >= -Decimal(self.equal)

    def gap(self, one: Pair, other: Pair) -> float:
        return self.ranks[one] - self.ranks[other]  # type: ignore[no-any-return]  # a long double

    def _rank(self, pair: Pair) -> Decimal:
        parent = pair[0]
        with localcontext() as context:
            context.prec = DIGITS
            if parent not in self._normalized:
                self._normalized[parent] = decimal_log_z(self.logits[parent])
            top, rest = self._normalized[parent]
            log_p = Decimal(float(self.logits[pair])) - top - rest
            score = Decimal(float(self.scores[parent])) + log_p
            return score / Decimal(float(self.divisors[parent]))

    def _exactly(self, pair: Pair) -> Fraction:
        """The score before log Z, which is one number for equal contexts."""
        return Fraction(float(self.scores[pair[0]])) + Fraction(float(self.logits[pair]))

    def right(self, parents: Int32, tokens: Int32) -> tuple[bool, bool]:
        """Tell if these pairs are the best, in their order, and if two of them are nearly tied."""
        possible = min(len(parents), int((self.logits > -np.inf).sum()))  # others are missing
        if (parents[possible:] >= 0).any() or (parents[:possible] < 0).any():
            return False, False
        parents, tokens = parents[:possible], tokens[:possible]
        pairs = list(zip(parents.tolist(), tokens.tolist(), strict=True))
        if len(set(pairs)) < len(pairs):
            return False, False
        steps = list(pairwise(pairs))
        left = self.logits.copy()
        left[parents, tokens] = -np.inf
        for parent, token in enumerate(np.argmax(left, axis=1)):
            if left[parent, token] > -np.inf:
                steps.append((pairs[-1], (parent, int(token))))
        close = [abs(self.gap(one, other)) < WITHIN for one, other in steps if one[0] != other[0]]
        return all(self.precedes(one, other) for one, other in steps), any(close)


def judged(
    reply: BeamStepReply,
    hidden_states: Float32,
    logits: Float64,
    truth: Long,
    scores: Float32,
    divisors: Float64,
    normalizer: str,
) -> Tally:
    """Groups whose pairs or order are not the truth's; of the others those nearly tied count."""
    G, K = reply.parents.shape
    H, V = len(scores) // G, logits.shape[1]
    right, close, rose = np.zeros((3, G), np.bool_)
    unproven = np.asarray(~reply.answer.proven.reshape(G, H).all(axis=1))
    for place in range(G):
        mine = slice(place * H, (place + 1) * H)
        equal = WITHIN if unproven[place] else 0.0
        arrays = hidden_states[mine], logits[mine], truth[mine], scores[mine], divisors[mine]
        group = Group(*arrays, equal)
        right[place], close[place] = group.right(reply.parents[place], reply.tokens[place])
        rose[place] = (reply.scores[place] > scores[mine][reply.parents[place]]).any()

    lost = unproven & ~close

    def describe(place: int) -> str:
        named = [(~right, "order"), (rose, "a score above its parent's"), (lost, "not proven")]
        names = ", ".join(name for faults, name in named if faults[counted][place])
        return f"{normalizer} V={V} a group of {H} hypotheses, {K} pairs: {names}"

    wrong = ~right | rose | lost
    counted = close | wrong
    return Tally().add(wrong[counted], describe)


ATTACKS = {f"beams-{kind}": partial(tied, kind=kind) for kind in KINDS}
