# /// script
# requires-python = ">=3.11"
# dependencies = ["numpy"]
# ///
"""The two ideas of logitsieve in numpy: `python examples/nano.py`. Read this file first.

For each token a decoder asks a softmax over V words the same question. Given a context h, which k
rows of W [V, D] have the largest logits w.h + b? Or: draw a row with a probability of e^logit / Z.
All V logits answer both, at the cost of reading all of W. Two ideas read less:

1. **A screen is learned.** Contexts come in clusters, and the best ids of a cluster's contexts are
   few. Route h to its cluster and compute the logits of that cluster's list. Fast, often right.
2. **A sketch is proven.** A few bits of each row bound its logit. Rows that cannot be among the k
   best by one bit a coordinate are dropped, the others are read by two bits, then by four, and the
   few that are left are computed. The answer is that of all V logits, for any context.

In the product compiled loops over bytes do this: docs/screen.md, sketch.md and decoding.md.

Shape letters end names: V vocabulary, D hidden size, N contexts, K answers, C clusters, P pairs of
a cluster and an id, F first coordinates, T the others, R rows of W that are looked at.
"""

import gzip
import json
from math import log, pi, sqrt
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np

Array: TypeAlias = Any  # of numpy, with the shape that ends its name
Answer: TypeAlias = tuple[Array, list[int]]  # ids, and the rows that were looked at


class Softmax(NamedTuple):
    """The output layer of a model, in float32."""

    weight: Array  # W [V, D]
    bias: Array  # [V]


def logits_of(softmax: Softmax, h_D: Array, rows_R: Array) -> Array:
    """Exact logits [R]: sixteen sums in float64, added in pairs, the same on any machine."""
    products = np.zeros((len(rows_R), -(-len(h_D) // 16) * 16))
    factors = softmax.weight[rows_R], h_D.astype(np.float64)
    np.multiply(*factors, out=products[:, : len(h_D)])
    sums = products.reshape(len(rows_R), products.shape[1] // 16, 16).sum(axis=1)
    while sums.shape[1] > 1:
        sums = sums[:, 0::2] + sums[:, 1::2]
    return sums[:, 0] + softmax.bias[rows_R]


def best_of(rows_R: Array, values_R: Array, k: int) -> Array:
    """The k rows with the largest values, of equal ones the lowest id."""
    return rows_R[np.lexsort((rows_R, -values_R))[:k]]


# Idea 1, a screen: Chen et al. 2019, Learning to Screen for Fast Softmax Inference.


class Screen(NamedTuple):
    """A direction for each cluster of contexts, and its candidates."""

    centroids: Array  # [C, D]
    lists: list[Array]  # C of ids


def learn_screen(softmax: Softmax, contexts_ND: Array, clusters: int, budget: float) -> Screen:
    """Fit a screen that computes at most `budget` logits a context, on average over these."""
    centroids_CD = k_means(contexts_ND, clusters)
    cluster_N = (contexts_ND @ centroids_CD.T).argmax(axis=1)
    labels_NK = label(softmax, contexts_ND, 5)
    return Screen(centroids_CD, fill_lists(cluster_N, labels_NK, clusters, budget))


def k_means(contexts_ND: Array, clusters: int) -> Array:
    """Unit centroids [C, D], each the mean direction of the contexts nearest to it."""
    unit_ND = contexts_ND / np.linalg.norm(contexts_ND, axis=1, keepdims=True)
    centroids_CD = unit_ND[np.random.default_rng(0).choice(len(unit_ND), clusters, replace=False)]
    for _ in range(8):
        nearest_N = (unit_ND @ centroids_CD.T).argmax(axis=1)
        sums_CD = 1e-6 * centroids_CD  # one without contexts stays
        np.add.at(sums_CD, nearest_N, unit_ND)
        centroids_CD = sums_CD / np.linalg.norm(sums_CD, axis=1, keepdims=True)
    return centroids_CD


def label(softmax: Softmax, contexts_ND: Array, k: int) -> Array:
    """The k best ids [N, K] of each context, in no order; float32 is enough to learn from."""
    blocks = np.array_split(contexts_ND, -(-len(contexts_ND) // 256))
    logits = (block_ND @ softmax.weight.T + softmax.bias for block_ND in blocks)
    return np.concatenate([np.argpartition(each_NV, -k)[:, -k:] for each_NV in logits])


def fill_lists(cluster_N: Array, labels_NK: Array, clusters: int, budget: float) -> list[Array]:
    """The lists that hold the most labels, at most `budget` ids a context on average: a knapsack.

    An id in the list of a cluster is worth its hits, the cluster's contexts that have it as a
    label, and costs a logit for every context of the cluster. Take the most hits for their cost.
    """
    V = labels_NK.max() + 1
    pairs, hits_P = np.unique(cluster_N[:, None] * V + labels_NK, return_counts=True)
    cluster_P, id_P = pairs // V, pairs % V
    cost_P = np.bincount(cluster_N)[cluster_P]
    order_P = np.argsort(-hits_P / cost_P, kind="stable")
    taken_P = order_P[np.cumsum(cost_P[order_P]) <= budget * len(cluster_N)]
    return [id_P[taken_P[cluster_P[taken_P] == cluster]] for cluster in range(clusters)]


def screen_topk(softmax: Softmax, screen: Screen, h_D: Array, k: int) -> Answer:
    """Return the k best ids of the list of h's cluster, and the rows of the list."""
    rows_R = screen.lists[(screen.centroids @ h_D).argmax()]
    if len(rows_R) < k:  # the list is too short
        rows_R = np.arange(len(softmax.bias))
    return best_of(rows_R, logits_of(softmax, h_D, rows_R), k), [len(rows_R)]


# Idea 2, a sketch. For any invertible A, w.h = (w A^-1).(A h). A good A puts most of this sum into
# the first coordinates: code these in eight bits each, and the others in four. The product of codes
# and A h estimates the logit. By Cauchy and Schwarz its error is at most |error of codes| |A h|.

FIRST = 64  # F: coordinates in eight bits
RIDGE = 0.02  # of the identity, so that no direction is stretched without limit
STEP = 0.29  # between the sixteen codes of a normal number, in deviations: the least error
LEVELS = ((1, (0,)), (2, (1,)), (4, (2, 3)))  # bits of a code known, and which of them are new
ROUNDING = 1e-9  # of |w||h|: far more than all rounding errors of float64 below


class Sketch(NamedTuple):
    """Codes of all rows, and the lengths of their errors."""

    turning: Array  # A [D, D]
    lengths: Array  # [V] of w A^-1
    bias: Array  # [V]
    first: Array  # int8 [V, F], the first coordinates ...
    steps: Array  # [V] ... over these
    first_errors: Array  # [V]
    planes: list[Array]  # uint8 [V, T/8]: the first bits of the others' codes, the second, ...
    scales: Array  # [levels, V] of codes of so many bits
    errors: Array  # [levels, V]


def make_sketch(softmax: Softmax, contexts_ND: Array) -> Sketch:
    """A sketch in coordinates that suit these contexts; its bounds hold for any."""
    weight_VD = softmax.weight.astype(np.float64)
    A_DD = balance(moments(weight_VD), moments(contexts_ND.astype(np.float64)))
    A_DD[FIRST:] = rotation(len(A_DD) - FIRST) @ A_DD[FIRST:]
    rows_VD = weight_VD @ np.linalg.inv(A_DD)
    first_VF, x_VT = rows_VD[:, :FIRST], rows_VD[:, FIRST:]
    steps_V1 = np.abs(first_VF).max(axis=1, keepdims=True) / 127 + 1e-30
    codes_VF = np.rint(first_VF / steps_V1)
    errors_V = np.linalg.norm(first_VF - codes_VF * steps_V1, axis=1)
    deviations_V1 = np.linalg.norm(x_VT, axis=1, keepdims=True) / sqrt(x_VT.shape[1]) + 1e-30
    codes_VT = (np.floor(x_VT / (STEP * deviations_V1)) + 8).clip(0, 15).astype(np.uint8)
    levels = np.array([fit_level(codes_VT, x_VT, bits) for bits, _ in LEVELS])
    return Sketch(
        A_DD, np.linalg.norm(rows_VD, axis=1), softmax.bias,
        codes_VF.astype(np.int8), steps_V1[:, 0], errors_V,
        [np.packbits(codes_VT >> shift & 1, axis=1) for shift in (3, 2, 1, 0)],
        levels[:, 0], levels[:, 1],
    )  # fmt: skip


def moments(rows_ND: Array) -> Array:
    """Second moments [D, D] over their trace, and a little of the identity."""
    sums_DD, D = rows_ND.T @ rows_ND, rows_ND.shape[1]
    return sums_DD / np.trace(sums_DD) + RIDGE / D * np.eye(D)


def balance(X_DD: Array, Y_DD: Array) -> Array:
    """A [D, D] that gives rows w A^-1 and contexts A h one covariance, its largest axes first.

    X and Y are the moments of rows and contexts, T^2 the geometric mean of X and Y^-1: T Y T and
    T^-1 X T^-1 are equal. Of all A this one leaves least outside of the first coordinates.
    """
    root_DD, inverse_DD = power(Y_DD, 0.5), power(Y_DD, -0.5)
    T_DD = power(inverse_DD @ power(root_DD @ X_DD @ root_DD, 0.5) @ inverse_DD, 0.5)
    return np.linalg.eigh(T_DD @ Y_DD @ T_DD)[1][:, ::-1].T @ T_DD


def power(matrix_DD: Array, exponent: float) -> Array:
    """A power of a symmetric, positive definite matrix."""
    values_D, axes_DD = np.linalg.eigh(matrix_DD)
    return (axes_DD * np.maximum(values_D, 1e-12 * values_D[-1]) ** exponent) @ axes_DD.T


def rotation(dim: int) -> Array:
    """A rotation uniform among all (Haar's measure): the Q of normal numbers, R's diagonal > 0."""
    Q, R = np.linalg.qr(np.random.default_rng(0).standard_normal((dim, dim)))
    return Q * np.sign(np.diag(R))


def fit_level(codes_VT: Array, x_VT: Array, bits: int) -> tuple[Array, Array]:
    """Return scales [V] and lengths of errors [V] of the first bits of four-bit codes of x.

    The bits stand for odd numbers q: -1 and 1, or -3 .. 3, or -15 .. 15. By the scale the error
    e = x - scale q is orthogonal to x, which `reach_of` needs.
    """
    q_VT = 2.0 * (codes_VT >> (4 - bits)) - (2**bits - 1)
    scales_V = (x_VT * x_VT).sum(axis=1) / np.maximum((q_VT * x_VT).sum(axis=1), 1e-30)
    return scales_V, np.linalg.norm(x_VT - scales_V[:, None] * q_VT, axis=1)


def reach_of(chance: float, dim: int) -> float:
    """The share of |e||y| that e.y exceeds with at most this chance; 1 for a chance of 0.

    e.y <= |e||y| always. But x, e and y were turned at random, and e is orthogonal to x: seen from
    y, it is a uniform direction of n = dim - 1 dimensions. One coordinate of it is above f with a
    chance of at most (1 - f^2)^((n-1)/2) / (f sqrt(2 pi (n-1))).
    """
    low, high = 0.0, 1.0
    for _ in range(40 if chance > 0 else 0):
        f, n = (low + high) / 2, dim - 1
        above = (n - 1) / 2 * log(1 - f * f) - log(f * sqrt(2 * pi * (n - 1)))
        low, high = (f, high) if above > log(chance) else (low, f)
    return high


class Sieve:
    """The rows still in question, and their logits by the bits read until now."""

    def __init__(self, sketch: Sketch, h_D: Array, reach: float = 1.0) -> None:
        c_D = sketch.turning @ h_D
        first_F, self.y_T = c_D[:FIRST], c_D[FIRST:]
        self.sketch, self.levels = sketch, iter(LEVELS)
        self.rows_R: Array = np.arange(len(sketch.bias))
        # w.h + b is this, and x.y for the others. This is off by ...
        self.known_R = sketch.bias + sketch.steps * (sketch.first @ first_F)
        # ... at most this, with the rounding of float64, and the estimate of x.y by ...
        self.spare_R = sketch.first_errors * np.linalg.norm(first_F)
        self.spare_R += ROUNDING * sketch.lengths * np.linalg.norm(c_D)
        # ... at most the length of the error times this.
        self.share = reach * np.linalg.norm(self.y_T)
        self.sums_R: Array = np.zeros(len(self.rows_R))  # of y and the codes so far

    def read(self) -> tuple[Array, Array]:
        """Return estimates [R] and upper bounds [R] of the logits, by one level more."""
        bits, planes = next(self.levels)
        for plane in planes:
            packed = self.sketch.planes[plane][self.rows_R]
            self.sums_R *= 2  # codes are binary numbers
            self.sums_R += np.unpackbits(packed, axis=1, count=len(self.y_T)) @ self.y_T
        q_y_R = 2 * self.sums_R - (2**bits - 1) * self.y_T.sum()
        level = bits // 2
        estimates_R = self.known_R + self.sketch.scales[level, self.rows_R] * q_y_R
        errors_R = self.sketch.errors[level, self.rows_R] * self.share + self.spare_R
        return estimates_R, estimates_R + errors_R

    def keep(self, may_R: Array) -> None:
        """Go on with the rows that may still win."""
        kept = (each[may_R] for each in (self.rows_R, self.sums_R, self.known_R, self.spare_R))
        self.rows_R, self.sums_R, self.known_R, self.spare_R = kept


def sketch_topk(softmax: Softmax, sketch: Sketch, h_D: Array, k: int, chance: float) -> Answer:
    """Return the k best ids, wrong with at most such a chance, and the rows left by each level.

    The threshold is the k-th best logit of some rows, so at most the k-th best of all: a row with a
    bound below it is not among the k best. The answer is right if the bounds of these k rows hold
    at all levels, so each may fail with a chance of chance / (3 k).
    """
    reach = reach_of(chance / (len(LEVELS) * k), len(h_D) - FIRST)
    sieve, threshold, left = Sieve(sketch, h_D, reach), -np.inf, []
    for _ in LEVELS:
        estimates_R, upper_R = sieve.read()
        likely = best_of(sieve.rows_R, estimates_R, k)
        threshold = max(threshold, logits_of(softmax, h_D, likely).min())
        sieve.keep(upper_R >= threshold)
        left.append(len(sieve.rows_R))
    return best_of(sieve.rows_R, logits_of(softmax, h_D, sieve.rows_R), k), left


# Exact draws. Add noise G = -log E to each logit / temperature, E exponential: the id with the best
# sum is a draw from the softmax. Most of the noise is never drawn, as the bounds leave few winners.

BLOCK = 16  # ids that share a random number
OF_IDS, OF_BLOCKS = 0, 1 << 30  # streams of random numbers


def exponentials(seed: int, stream: int, places_N: Array) -> tuple[Array, Array]:
    """Return an exponential number and four more bits for each place, 128 bits for two places.

    They come from Philox4x32-10 (Salmon et al. 2011): equal seeds, equal numbers at a place.
    """
    word, places = 0xFFFFFFFF, places_N.astype(np.uint64)
    c0, c1, c2, c3 = places >> 1, 0 * places + stream, 0 * places, 0 * places
    key0, key1 = seed & word, seed >> 32
    for _ in range(10):
        low, high = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = high >> 32 ^ c1 ^ key0, high & word, low >> 32 ^ c3 ^ key1, low & word
        key0, key1 = key0 + 0x9E3779B9 & word, key1 + 0xBB67AE85 & word
    bits_N = np.where(places & 1, c2 | c3 << 32, c0 | c1 << 32)
    return -np.log((bits_N >> 12) * 2.0**-52 + 2.0**-53), bits_N % BLOCK


def noise_of(seed: int, rows_R: Array) -> Array:
    """Gumbel noise [R]. The least E of a block is exponential with 16 times the rate, and any id's.

    The other ids exceed it by exponentials of their own: an exponential has no memory.
    """
    least_R, owner_R = exponentials(seed, OF_BLOCKS, rows_R // BLOCK)
    more_R, _ = exponentials(seed, OF_IDS, rows_R)
    return -np.log(least_R / BLOCK + np.where(rows_R % BLOCK == owner_R, 0.0, more_R))


def sketch_draw(
    softmax: Softmax, sketch: Sketch, h_D: Array, temperature: float, seed: int
) -> Answer:
    """Draw an id; return it, and the numbers of rows with noise, left by two bits, by four.

    Guess the winner's value and look at all rows that may reach it. If the best of them does, it is
    the winner. Otherwise the guess was too high.
    """
    guess, every_V = np.inf, np.arange(len(sketch.bias))
    while True:
        sieve, noise_V = Sieve(sketch, h_D), np.full(len(every_V), -np.inf)
        estimates_V, upper_V = (each / temperature for each in sieve.read())
        guess = min(guess, np.logaddexp.reduce(estimates_V) - 0.5)  # too high once in five draws

        least, _ = exponentials(seed, OF_BLOCKS, every_V[::BLOCK] // BLOCK)
        highest = np.maximum.reduceat(upper_V, every_V[::BLOCK]) - np.log(least / BLOCK)
        rows_R = every_V[(highest >= guess)[every_V // BLOCK]]  # of blocks that may reach it
        noise_V[rows_R] = noise_of(seed, rows_R)
        sieve.keep(upper_V + noise_V >= guess)
        left = [len(rows_R)]
        for _ in LEVELS[1:]:
            _, upper_R = sieve.read()
            sieve.keep(upper_R / temperature + noise_V[sieve.rows_R] >= guess)
            left.append(len(sieve.rows_R))
        values_R = logits_of(softmax, h_D, sieve.rows_R) / temperature + noise_V[sieve.rows_R]
        best = values_R.max(initial=-np.inf)
        if best >= guess:
            return best_of(sieve.rows_R, values_R, 1), left
        guess = max(best, guess - 1)


# A model to try it on: the demo's LSTM of 40,000 words.
DEMO = Path(__file__).parents[1] / "demo"


def load_model() -> dict[str, Array]:
    """The demo's tensors: safetensors of bfloat16, which are the upper halves of float32."""
    data = (DEMO / "model" / "model.safetensors").read_bytes()
    size, tensors = int.from_bytes(data[:8], "little"), {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        start, end = entry["data_offsets"]
        halves = np.frombuffer(data, "<u2", (end - start) // 2, 8 + size + start)
        tensors[name] = (halves.astype("<u4") << 16).view("<f4").reshape(entry["shape"])
    return tensors


def load_text() -> Array:
    """The demo's text as ids, [windows, 32 words]; the last tenth was not trained on."""
    words = (DEMO / "model" / "vocab.txt").read_text(encoding="utf-8").split()
    text = gzip.decompress((DEMO / "text" / "docs.txt.gz").read_bytes()).decode()
    ids = dict(zip(words, range(len(words)), strict=True))
    read = [ids.get(word, 0) for word in text.replace("\n", " <eos> ").split()]
    return np.array(read[: len(read) // 32 * 32]).reshape(-1, 32)


def contexts_of(model: dict[str, Array], windows: Array) -> Array:
    """The LSTM's contexts [N, D] after all but the first 8 words of each window."""
    outputs, states = [], [np.zeros((2, len(windows), 256), np.float32)] * 2
    for ids in windows.T:
        x = model["embedding.weight"][ids]
        for layer, (h, c) in enumerate(states):
            gates = x @ model[f"lstm.weight_ih_l{layer}"].T + model[f"lstm.bias_ih_l{layer}"]
            gates += h @ model[f"lstm.weight_hh_l{layer}"].T + model[f"lstm.bias_hh_l{layer}"]
            into, forget, cell, out = np.split(gates, 4, axis=1)
            c = c / (1 + np.exp(-forget)) + np.tanh(cell) / (1 + np.exp(-into))
            x = np.tanh(c) / (1 + np.exp(-out))
            states[layer] = np.stack([x, c])
        outputs.append(x)
    return np.concatenate(outputs[8:])


def main() -> None:
    """Learn and sketch, then answer contexts of text that the model never saw."""
    model, windows, T = load_model(), load_text(), 0.8
    softmax, seen = Softmax(model["embedding.weight"], model["output.bias"]), len(windows) * 9 // 10
    fitted_ND = contexts_of(model, windows[: seen : seen // 100])
    asked_ND = contexts_of(model, windows[seen::20])[::70]
    every = np.arange(len(softmax.bias))
    logits_NV = np.stack([logits_of(softmax, h_D, every) for h_D in asked_ND])
    noise_NV = np.stack([T * noise_of(seed, every) for seed in range(len(asked_ND))])
    screen = learn_screen(softmax, fitted_ND, clusters=30, budget=300)
    sketch = make_sketch(softmax, fitted_ND)

    def show(name: str, answers: list[Answer], values_NV: Array = logits_NV) -> None:
        pairs = zip(answers, values_NV, strict=True)
        right = sum(np.array_equal(ids, best_of(every, each, len(ids))) for (ids, _), each in pairs)
        rows = [round(each) for each in np.mean([rows for _, rows in answers], axis=0)]
        print(f"{name:15}  right {right} of {len(answers)}  rows {rows}")

    print(f"W {softmax.weight.shape}, {len(fitted_ND):,} contexts fitted")
    show("screen", [screen_topk(softmax, screen, h_D, 1) for h_D in asked_ND])
    for most in (0.0, 1e-15):
        show(f"max_error {most:g}", [sketch_topk(softmax, sketch, h, 5, most) for h in asked_ND])
    drawn = [sketch_draw(softmax, sketch, h_D, T, seed) for seed, h_D in enumerate(asked_ND)]
    show("draws", drawn, logits_NV + noise_NV)


if __name__ == "__main__":
    main()
