"""The definition of an exact answer, in plain numpy: what kernels and heads are compared with."""

from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from math import erfc, sqrt
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

LANES = 16


def dot64(weight_VD: NDArray[np.float32], hidden_D: NDArray[np.float32]) -> NDArray[np.float64]:
    """[V] dots: sixteen float64 sums, element d in sum d mod 16, adjacent sums added in pairs."""
    rows, dim = weight_VD.shape
    width = -(-dim // LANES) * LANES
    products = np.zeros((rows, width))
    products[:, :dim] = weight_VD.astype(np.float64) * hidden_D.astype(np.float64)
    sums = np.zeros((rows, LANES))
    for start in range(0, width, LANES):
        sums += products[:, start : start + LANES]
    while sums.shape[1] > 1:
        sums = sums[:, 0::2] + sums[:, 1::2]
    return sums[:, 0]


def logits64(
    weight_VD: NDArray[np.float32], bias_V: NDArray[np.float32], hidden_BD: NDArray[np.float32]
) -> NDArray[np.float64]:
    """[B, V] exact logits before they are rounded to float32."""
    return np.stack([dot64(weight_VD, row) + bias_V.astype(np.float64) for row in hidden_BD])


def best(logits_BV: NDArray[np.float64], k: int) -> NDArray[np.int64]:
    """[B, k] ids of the largest, equal values by the lower id."""
    return np.argsort(-logits_BV, axis=1, kind="stable")[:, :k]


def log_sum_exp(logits_V: NDArray[np.float64]) -> float:
    """log Z of one row."""
    largest = logits_V.max()
    return float(largest + np.log(np.exp(logits_V - largest).sum()))


def edited(
    logits_V: NDArray[np.float64],
    *,
    banned: Iterable[int] = (),
    allowed: Iterable[int] | None = None,
    biased: Mapping[int, float] | None = None,
    repeated: Iterable[int] = (),
    penalty: float = 1.0,
) -> NDArray[np.float64]:
    """[V] what constraints make of one row: -inf for what must not be answered."""
    found = logits_V.copy()
    for i in set(repeated):
        found[i] = found[i] / penalty if found[i] > 0 else found[i] * penalty
    for i, bias in (biased or {}).items():
        found[i] += np.float64(np.float32(bias))
    limits = np.finfo(np.float32)
    found = np.clip(found, float(limits.min), float(limits.max))
    shut = set(banned)
    if allowed is not None:
        shut |= set(range(found.size)) - set(allowed)
    found[list(shut)] = -np.inf
    return found


def log_probs(logits_V: NDArray[np.float64]) -> NDArray[np.longdouble]:
    """[V] log-probabilities of one row: of two numbers of one sign, so that nothing cancels."""
    wide = logits_V.astype(np.longdouble)
    best = wide.argmax()
    weights = np.exp(wide - wide[best])
    weights[best] = 0
    return np.asarray((wide - wide[best]) - np.log1p(weights.sum()))


def log_z_of(logits_V: NDArray[np.float64]) -> Fraction:
    """log Z of one row: the largest logit, and a float64 beside it."""
    return Fraction(float(logits_V.max())) - Fraction(float(log_probs(logits_V).max()))


def nearest_or_below(
    printed: NDArray[np.float32], true: NDArray[np.longdouble]
) -> NDArray[np.bool_]:
    """Whether each is the float32 nearest to the true number, or the one below that."""
    with np.errstate(over="ignore"):
        nearest = true.astype(np.float32)
    below = np.nextafter(nearest, np.float32(-np.inf))
    return np.asarray((printed == nearest) | (printed == below))


class Hypothesis(NamedTuple):
    """One parent of a beam step."""

    score: float
    length: int
    finished: bool
    logits: Sequence[float]  # [V] as edited
    log_z: Fraction


class Pair(NamedTuple):
    """One child of a beam step."""

    parent: int
    token: int
    score: float
    rank: float
    finished: bool


def beam_pairs(
    group: Sequence[Hypothesis], most: int, eos_ids: Sequence[int], alpha: float
) -> list[Pair]:
    """The best children of one group, best first."""
    found = []
    for parent, one in enumerate(group):
        length = one.length + (not one.finished)
        children = {eos_ids[0]: (0.0, Fraction(0))} if one.finished else {}
        if not one.finished:
            possible = [i for i, logit in enumerate(one.logits) if logit > -np.inf]
            children = {i: (one.logits[i], one.log_z) for i in possible}
        for token, (logit, log_z) in children.items():
            score = Fraction(one.score) + (Fraction(logit) - log_z)
            rank = score / Fraction(((5 + length) / 6) ** alpha)
            ended = one.finished or token in eos_ids
            pair = Pair(parent, token, float(score), float(rank), ended)
            found.append(((-rank, parent, -logit, token), pair))
    return [pair for _, pair in sorted(found)[:most]]


def softmax(logits_V: NDArray[np.float64], temperature: float = 1.0) -> NDArray[np.float64]:
    """[V] probabilities at a temperature; 0 for logits of -inf."""
    weights = np.exp((logits_V - logits_V.max()) / temperature)
    return np.asarray(weights / weights.sum())


def filtered(
    logits_V: NDArray[np.float64], temperature: float, top_k: int, top_p: float, min_p: float
) -> list[int]:
    """The ids that remain, best first: temperature, then top-k, top-p and min-p in that order."""
    probs = softmax(logits_V, temperature)
    order = best(logits_V[None], len(logits_V))[0]
    order = order[probs[order] > 0][: top_k or None]
    shares = probs[order] / probs[order].sum()
    before = np.cumsum(shares) - shares
    if top_p < 1:
        order = order[(before < top_p) | (np.arange(len(order)) == 0)]
    return [int(i) for i in order if probs[i] >= min_p * probs[order[0]]]


def gumbel_noise(
    seed: int, step: int, draw: int | NDArray[np.int64], ids: NDArray[np.int64]
) -> NDArray[np.float64]:
    """The noise of ids of a draw: -log of exponentials, of which 16 ids are drawn by the least.

    Draws [N, 1] and ids [V] have noise [N, V].
    """
    ids = np.asarray(ids)
    bits = random_bits(seed, step, draw | 1 << 30, ids // 16)
    exponentials = -np.log(uniforms(bits)) / 16
    others = np.asarray(ids % 16 != (bits % np.uint64(16)).astype(np.int64))
    fresh = -np.log(uniforms(random_bits(seed, step, draw, ids)))
    return np.asarray(-np.log(np.where(others, exponentials + fresh, exponentials)))


def uniforms(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    """float64 in (0, 1) of the highest 52 bits."""
    return np.asarray((bits >> np.uint64(12)).astype(np.float64) * 2.0**-52 + 2.0**-53)


def random_bits(
    seed: int, step: int, draw: int | NDArray[np.int64], places: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Philox4x32-10 with the key `seed`, two places a counter."""
    low, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    words = np.asarray(places) >> 1, draw, step & 0xFFFFFFFF, step >> 32
    counter = list(np.broadcast_arrays(*(np.asarray(word, np.uint64) for word in words)))
    keys = [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        one, other = counter[0] * np.uint64(0xD2511F53), counter[2] * np.uint64(0xCD9E8D57)
        counter = [
            (other >> half) ^ counter[1] ^ np.uint64(keys[0]), other & low,
            (one >> half) ^ counter[3] ^ np.uint64(keys[1]), one & low,
        ]  # fmt: skip
        keys = [(keys[0] + 0x9E3779B9) & 0xFFFFFFFF, (keys[1] + 0xBB67AE85) & 0xFFFFFFFF]
    odd = np.asarray(places) % 2 == 1
    return np.asarray(
        np.where(odd, counter[2] | counter[3] << half, counter[0] | counter[1] << half)
    )


def drawn(
    logits_V: NDArray[np.float64],
    draws: int,
    seed: int,
    step: int = 0,
    temperature: float = 1.0,
    left: Sequence[int] | None = None,
) -> list[int]:
    """The ids of draws 0 to draws - 1: the largest x / T + G of the ids that are left, or of all.

    Equal ones by the lower id.
    """
    ids = np.arange(len(logits_V)) if left is None else np.sort(np.asarray(left, np.int64))
    scaled = (logits_V[ids] - logits_V.max()) * (1.0 / temperature)
    noise = gumbel_noise(seed, step, np.arange(draws)[:, None], ids)
    found: list[int] = ids[np.argmax(scaled + noise, axis=1)].tolist()
    return found


def chi_square_p(counts: NDArray[np.int64], probs: NDArray[np.float64]) -> float:
    """The chance of counts as far from `probs` or farther, where 5 or more are expected of each.

    What is rarer shares a cell. Wilson and Hilferty 1931: cube roots of chi-square are normal.
    """
    expected = probs * counts.sum()
    common = expected >= 5
    cells = np.append(expected[common], expected[~common].sum())
    seen = np.append(counts[common], counts[~common].sum())
    assert not seen[cells == 0].any(), "what is impossible was drawn"
    cells, seen = cells[cells > 0], seen[cells > 0]
    freedom = len(cells) - 1
    if freedom == 0:
        return 1.0
    spread = 2 / (9 * freedom)
    statistic = ((seen - cells) ** 2 / cells).sum() / freedom
    return 0.5 * erfc((np.cbrt(statistic) - (1 - spread)) / sqrt(2 * spread))
