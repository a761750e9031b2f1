"""Attacks on routes by int8: the clusters chosen are those of `dot64` over all centroids.

Shape letters: B batch rows, C clusters, D hidden size, P probes.
"""

import numpy as np
from numpy.random import Generator

from logitsieve.api.results import Float32, Float64, Int32, Int64
from logitsieve.heads import ScreenHead, Softmax
from logitsieve.heads.full import FullHead
from logitsieve.kernels.screen.route import CODES
from tests.oracle import logits64
from tools.attacks.judge import best
from tools.attacks.matrices import DIMS, contexts_of, rows_of
from tools.attacks.tally import Tally

ROWS = 32  # contexts of a batch
LARGEST = 3e38  # of a coordinate


def odd_matrices(random: Generator) -> Tally:
    """Centroids and contexts of all kinds."""
    C, D = int(random.integers(1, 200)), int(random.choice(DIMS))
    centroids = rows_of(random, C, D)
    centroids[: random.integers(C)] = centroids[-1]  # ties
    hidden_states = contexts_of(random, Softmax(centroids, np.zeros(C, np.float32)), ROWS)
    return judged(centroids, hidden_states, probes_of(random, C))


def all_magnitudes(random: Generator) -> Tally:
    """Products that underflow and overflow, denormal numbers among them."""
    C, D = int(random.integers(1, 100)), int(random.choice(DIMS))
    centroids = random.standard_normal((C, D)) * 2.0 ** random.integers(-150, 127)
    if random.random() < 0.5:
        centroids *= 2.0 ** -random.integers(0, 30, (C, 1))
    hidden_states = random.standard_normal((ROWS, D)) * 2.0 ** random.integers(-150, 127, (ROWS, 1))
    return judged(within(centroids), within(hidden_states), probes_of(random, C))


def near_ties(random: Generator) -> Tally:
    """Centroids whose dots with a context are about the same, to all degrees."""
    C, D = int(random.integers(2, 120)), int(random.choice(DIMS))
    rows = rows_of(random, C, D).astype(np.float64)
    h = contexts_of(random, Softmax(within(rows), np.zeros(C, np.float32)), 1)[0]
    wide, dots = h.astype(np.float64), rows @ h.astype(np.float64)
    gaps = 2.0 ** random.uniform(-40, -4, C) * random.choice([-1, 1], C) * np.abs(dots).max()
    square = max(float(wide @ wide), 1e-300)
    centroids = within(rows + np.outer(dots.max() + gaps - dots, wide) / square)
    return judged(centroids, near(h, random), probes_of(random, C))


def coding_errors(random: Generator) -> Tally:
    """Coding errors along the context and against it, and dots that are about the same.

    The context is whole numbers z, which its codes hold. The centroids are q + r and q' - r', q and
    q' whole numbers, their errors r and r' multiples of z.
    """
    C, D = int(random.integers(2, 60)), int(random.choice([16, 31, 64, 200]))
    z = random.integers(-127, 128, D)
    z[0], z[1] = 0, 127
    q = random.integers(-100, 101, D)
    q[0] = 127  # the scale is 1, as coordinate 0 has no error
    error = z * (0.49 / 127)
    centroids = np.empty((C, D))
    for row in range(C):
        if row % 2:
            centroids[row] = q + error
        else:
            apart = float(2 * error @ z)
            steps = stepped(z, apart, random)
            missing = apart - steps @ z
            centroids[row] = q + steps - error + z * missing / (z @ z)
    gaps = random.choice([-1, 1], C) * 2.0 ** random.uniform(-24, -4, C) * np.abs(error @ z)
    centroids += np.outer(gaps, z) / (z @ z)
    centroids = centroids[random.permutation(C)] * 2.0 ** random.integers(-60, 60)
    hidden_states = near(z * 2.0 ** random.integers(-60, 60), random)
    return judged(within(centroids), hidden_states, probes_of(random, C))


def stepped(z: Int64, apart: float, random: Generator) -> Int64:
    """[D] steps of 1 along z, until their dot with z is nearly `apart`."""
    steps = np.zeros_like(z)
    for place in random.permutation(np.flatnonzero(z)):
        if steps @ z + abs(int(z[place])) <= apart:
            steps[place] = np.sign(z[place])
    return steps


def parallel(random: Generator) -> Tally:
    """Centroids along the context, without coding errors: their scales alone make dots differ."""
    C, D = int(random.integers(2, 100)), int(random.choice([1, 16, 64, 200, 2048]))
    z = random.integers(-127, 128, D)
    z[random.integers(D)] = 127
    scales = 1 + random.integers(-4, 5, C) * 2.0**-24
    rows = np.outer(scales, z) * random.uniform(1, 2)
    hidden_states = near(z * random.uniform(1, 2), random)
    return judged(within(rows), hidden_states, probes_of(random, C))


def near(h: np.ndarray, random: Generator) -> Float32:
    """[B, D] a context, first as it is, then a little off."""
    noise = 2.0 ** random.uniform(-30, -6, (ROWS, 1)) * random.standard_normal((ROWS, len(h)))
    noise[0] = 0
    return within(h * (1 + noise))


def within(values: Float64) -> Float32:
    return np.ascontiguousarray(np.clip(values, -LARGEST, LARGEST), np.float32)


def probes_of(random: Generator, C: int) -> int:
    return int(min(C, random.choice([1, 1, 2, 5, 16])))


def judged(centroids: Float32, hidden_states: Float32, probes: int) -> Tally:
    """The routes of a call by codes and of one by float32: each cluster lists its number alone."""
    C, D = centroids.shape
    softmax = Softmax(np.full((C, D), 1e-8, np.float32), np.zeros(C, np.float32))
    arrays = {
        "centroids": centroids,
        "offsets": np.arange(C + 1, dtype=np.int32),
        "ids": np.arange(C, dtype=np.int32),
    }
    head = ScreenHead.from_arrays(
        softmax, arrays, fallback=FullHead(softmax), threads=1, knobs={"probes": probes}
    )
    truth = np.sort(best(centroids, np.zeros(C, np.float32), hidden_states, probes)[0], axis=1)
    tally = Tally()
    for codes in ("with", "without"):
        listed = head.candidates(hidden_states, 1)
        routes = [np.sort(part) for part in np.split(listed.ids, listed.offsets[1:-1])]
        wrong = np.array([not np.array_equal(*pair) for pair in zip(routes, truth, strict=True)])

        def describe(place: int, routes: list[Int32] = routes, codes: str = codes) -> str:
            dots = logits64(centroids, np.zeros(C, np.float32), hidden_states[place, None])[0]
            got, wanted = routes[place][:5], truth[place][:5]
            sizes = f"C={C} D={D} {codes} codes row {place}"
            return f"{sizes}: {got} {dots[got]}, truth {wanted} {dots[wanted]}"

        tally.add(wrong, describe)
        head._descriptor[CODES] = 0  # as of a screen whose centroids have biases
    return tally


ATTACKS = {
    "routes-odd-matrices": odd_matrices,
    "routes-all-magnitudes": all_magnitudes,
    "routes-near-ties": near_ties,
    "routes-coding-errors": coding_errors,
    "routes-parallel": parallel,
}
