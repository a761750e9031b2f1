"""Attacks by crafted sketches: what the check of all rows accepts must bound every logit.

Shape letters: B batch rows.
"""

from collections.abc import Callable

import numpy as np
from numpy.random import Generator

from logitsieve.api.results import Float32
from logitsieve.index.sketch_rows import check_rows
from logitsieve.kernels.sketch.levels import FIRST_NORM, LAST_NORM, MIDDLE_NORM, TAIL_LENGTH
from tools.attacks import bounds, topk
from tools.attacks.matrices import DIMS, Sketched, contexts_of, other_sketch, sketched, softmax_of
from tools.attacks.tally import Tally

CRAFTED, ROWS, HALVINGS = 4, 6, 30
NUMBERS = "directions", "limits", "starts", "coarse", "first", "middle", "fine"


def crafted(random: Generator) -> Tally:
    """Changed numbers, and sketches of a neighbouring matrix: refused, or still right."""
    V, D = int(random.integers(2, 300)), int(random.choice(DIMS))
    victim, tally = sketched(softmax_of(random, V, D), random), Tally()
    for _ in range(CRAFTED):
        changed = spoiled(victim, random)
        if accepted(changed):
            tally.join(attacked(changed, victim, random))
        else:
            tally.add(np.zeros(1, np.bool_))
    return tally


def least_limits(random: Generator) -> Tally:
    """The least kappa, Q or `left` that is accepted, and contexts along what they limit."""
    V, D = int(random.integers(2, 300)), int(random.choice(DIMS))
    victim = sketched(softmax_of(random, V, D), random)
    limits = victim.arrays["limits"].copy()
    chosen = random.integers(5) if random.random() < 0.7 else slice(None)

    def scaled(factor: float) -> Sketched:
        less = limits.copy()
        less[chosen] *= factor
        return victim._replace(arrays=victim.arrays | {"limits": less})

    return attacked(least_accepted(scaled), victim, random)


def least_norms(random: Generator) -> Tally:
    """The least norms of a level that are accepted, and contexts along errors or tails."""
    V, D = int(random.integers(2, 300)), int(random.choice([dim for dim in DIMS if dim > 16]))
    victim = sketched(softmax_of(random, V, D), random, first=16)
    kind = (TAIL_LENGTH, FIRST_NORM, MIDDLE_NORM, LAST_NORM)[random.integers(4)]

    def scaled(factor: float) -> Sketched:
        starts = victim.arrays["starts"].copy()
        less = starts[kind : kind + 1].view(np.float32) * np.float32(factor)
        starts[kind] = less.view(np.int32)[0]
        return victim._replace(arrays=victim.arrays | {"starts": starts})

    return attacked(least_accepted(scaled), victim, random)


def least_accepted(scaled: Callable[[float], Sketched]) -> Sketched:
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if accepted(scaled(middle)) else (middle, high)
    return scaled(high)


def spoiled(victim: Sketched, random: Generator) -> Sketched:
    """One array with a bit flipped, or a number a little smaller, or a neighbour's sketch."""
    if random.random() < 0.2:
        W = victim.softmax.weight
        off = 2.0 ** random.uniform(-26, -10) * random.standard_normal(W.shape)
        return other_sketch(victim, (W * (1 + off)).astype(np.float32))
    name = NUMBERS[random.integers(len(NUMBERS))]
    array = victim.arrays[name].copy()
    if array.dtype == np.uint8:
        content = array.reshape(-1)
        content[random.integers(content.size)] ^= np.uint8(1 << random.integers(8))
    else:
        place = tuple(int(random.integers(size)) for size in array.shape)
        array[place] = array[place] * (1 - 2.0 ** random.uniform(-24, 0))
    return victim._replace(arrays=victim.arrays | {name: array})


def accepted(victim: Sketched) -> bool:
    """Return True if `verify --all-rows` takes the sketch for one of this softmax."""
    try:
        rows = np.arange(victim.softmax.vocab_size)
        check_rows(victim.softmax, victim.arrays, rows, lambda done: None)
    except ValueError:
        return False
    return True


def attacked(victim: Sketched, honest: Sketched, random: Generator) -> Tally:
    """Bounds and top k of a sketch, by contexts that are hard on the honest one."""
    hidden_states = [contexts_of(random, victim.softmax, ROWS)]
    for _ in range(ROWS):
        row = topk.extreme_row(honest, random)
        hidden_states.append(topk.parallel(honest, row, bool(random.integers(2)), random)[None])
    contexts: Float32 = np.concatenate(hidden_states)
    tally = bounds.judged(victim, contexts)
    k = int(random.integers(1, 1 + max(1, victim.softmax.vocab_size // 16)))
    tally.join(topk.judged(victim.head, victim.softmax, contexts, k))
    return tally


ATTACKS = {
    "sketches-crafted": crafted,
    "sketches-least-limits": least_limits,
    "sketches-least-norms": least_norms,
}
