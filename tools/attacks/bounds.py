"""Attacks on the bounds and `candidates` of `sketch`: the interval of every logit.

How tight an interval is: the distance of a logit from its middle, in halves of its width.

Shape letters: B batch rows, D hidden size, V vocabulary.
"""

import numpy as np
from numpy.random import Generator

from logitsieve.api.results import Bool, Float32, Float64
from logitsieve.heads import Softmax
from logitsieve.index_builder.fit.sketch import code, rotate
from tests.bounds import bounds_of
from tests.oracle import logits64
from tools.attacks import topk
from tools.attacks.matrices import DIMS, Sketched, contexts_of, sketched, softmax_of
from tools.attacks.tally import Tally

CLIMBERS, STEPS = 16, 40


def coding_errors(random: Generator) -> Tally:
    """Contexts parallel to the coding error and the rest of a row, for several rows."""
    D = int(random.choice(DIMS))
    victim = sketched(softmax_of(random, int(random.integers(1, 700)), D), random)
    rows = [topk.extreme_row(victim, random) for _ in range(8)]
    contexts = [topk.parallel(victim, row, bool(random.integers(2)), random) for row in rows]
    return judged(victim, np.stack(contexts))


def odd_matrices(random: Generator) -> Tally:
    softmax = softmax_of(random, int(random.integers(1, 700)), int(random.choice(DIMS)))
    return judged(sketched(softmax, random), contexts_of(random, softmax, 16))


def whole_numbers(random: Generator) -> Tally:
    """Codes hold the rows exactly, and biases are large: a bound is as wide as rounding asks."""
    victim, h = topk.coded_exactly(random, int(random.integers(1, 300)))
    logits = logits64(victim.softmax.weight, victim.softmax.bias, h[None])[0]
    bias = topk.tying_biases(logits, int(random.integers(len(logits))), random)
    return judged(victim.biased(bias), h[None])


def climbing_contexts(random: Generator) -> Tally:
    """Contexts that change at random, and stay changed where an interval becomes tighter."""
    D, V = int(random.choice([2, 8, 24, 64])), int(random.integers(17, 120))
    victim = sketched(softmax_of(random, V, D), random)
    hidden_states = contexts_of(random, victim.softmax, CLIMBERS)
    tally = judged(victim, hidden_states)
    so_far = _tightest(victim, hidden_states)
    for step in range(STEPS):
        noise = 2.0 ** random.uniform(-step / 3, 0, (CLIMBERS, 1))
        changed = (
            noise
            * random.standard_normal(hidden_states.shape)
            * np.abs(hidden_states).max(1)[:, None]
        )
        changed = np.where(random.random(hidden_states.shape) < 0.5, changed, 0)
        tried = (hidden_states + changed).astype(np.float32)
        tried *= np.minimum(1, 1e35 / np.abs(tried).max()).astype(np.float32)
        tally.join(judged(victim, tried))
        tight = _tightest(victim, tried)
        better = tight >= so_far
        hidden_states[better], so_far[better] = tried[better], tight[better]
    return tally


def climbing_rows(random: Generator) -> Tally:
    """Rows of W that change at random, and stay changed where an interval becomes tighter."""
    D, V = int(random.choice([2, 8, 24])), int(random.integers(1, 40))
    victim = sketched(softmax_of(random, V, D), random, first=16)
    hidden_states, tally, so_far = contexts_of(random, victim.softmax, 4), Tally(), -1.0
    for step in range(STEPS):
        W = victim.softmax.weight.copy()
        row = random.integers(V)
        W[row] *= (1 + 2.0 ** -random.uniform(0, step + 1) * random.standard_normal(D)).astype("f4")
        softmax = Softmax(W, victim.softmax.bias)
        turned = rotate(softmax, victim.turned.directions)
        tried = Sketched(softmax, turned, code(turned, 16))
        tally.join(judged(tried, hidden_states))
        tight = float(_tightest(tried, hidden_states).max())
        if tight >= so_far:
            victim, so_far = tried, tight
    return tally


def _bounds(victim: Sketched, hidden_states: Float32) -> tuple[Float64, Float64, Bool]:
    """lower and upper [B, V], and where these are the logit itself."""
    found = (bounds_of(victim.head, row[None]) for row in hidden_states)
    listed, lower, upper = zip(*found, strict=True)
    computed = np.zeros((len(hidden_states), victim.softmax.vocab_size), np.bool_)
    for row, ids in enumerate(listed):
        computed[row, ids] = True
    return np.stack(lower).astype(np.float64), np.stack(upper).astype(np.float64), computed


def _parts(lower: Float64, upper: Float64, computed: Bool, logits: Float64) -> Float64:
    """[B, V] distances from the middle in halves of the width; NaN where there is no interval."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        parts = np.abs(2 * logits - lower - upper) / (upper - lower)
    return np.where(computed | ~np.isfinite(parts), np.nan, parts)


def _tightest(victim: Sketched, hidden_states: Float32) -> Float64:
    softmax = victim.softmax
    lower, upper, computed = _bounds(victim, hidden_states)
    logits = logits64(softmax.weight, softmax.bias, hidden_states)
    parts = _parts(lower, upper, computed, logits)
    return np.asarray(np.nan_to_num(parts, nan=-1.0).max(axis=1))


def judged(victim: Sketched, hidden_states: Float32) -> Tally:
    softmax, tally = victim.softmax, Tally()
    logits = logits64(softmax.weight, softmax.bias, hidden_states)
    lower, upper, computed = _bounds(victim, hidden_states)
    printed = logits.astype(np.float32)
    outside = (logits < lower) | (logits > upper)
    outside[computed] = ((lower != printed) | (upper != printed))[computed]

    def describe(place: int) -> str:
        i = int(np.argmax(outside[place]))
        return f"logit {i}: {logits[place, i]} outside {lower[place, i]} .. {upper[place, i]}"

    tally.add(np.asarray(outside.any(axis=1)), describe)
    tally.tighten(_parts(lower, upper, computed, logits))
    return tally


ATTACKS = {
    "bounds-odd-matrices": odd_matrices,
    "bounds-coding-errors": coding_errors,
    "bounds-whole-numbers": whole_numbers,
    "bounds-climbing-contexts": climbing_contexts,
    "bounds-climbing-rows": climbing_rows,
}
