"""Attacks on the top k of `sketch` and `full`: ids, order and last bits, judged by `dot64`.

Shape letters: B batch rows, D hidden size, V vocabulary, K answers.
"""

from functools import partial

import numpy as np
from numpy.random import Generator

from logitsieve.api.mask import packed
from logitsieve.api.results import Float32, Float64
from logitsieve.heads import Head, Softmax
from logitsieve.heads.full import FullHead
from logitsieve.index_builder.fit.sketch import code, rotate, rounded
from logitsieve.kernels.simd.planes import LARGEST_CODE
from logitsieve.kernels.sketch.sketch import widths_of
from logitsieve.utils.stored import KINDS
from tests.oracle import logits64
from tests.stored import BLOCKS, random_blocks
from tests.synthetic import basis_of
from tools.attacks.judge import best
from tools.attacks.matrices import DIMS, Sketched, contexts_of, sketched, softmax_of
from tools.attacks.tally import Tally

ROWS, TIES = 64, 8  # contexts of a batch; biases for a matrix
AT_ONCE = 5  # contexts of codes, of which four share rows


def odd_matrices(random: Generator) -> Tally:
    """W, biases and contexts of all kinds; every k from 1 to more than a sketch is used for."""
    D, V = int(random.choice(DIMS)), int(random.integers(1, 1500))
    victim = sketched(softmax_of(random, V, D), random)
    hidden_states = contexts_of(random, victim.softmax, ROWS)
    k = int(min(V, random.choice([1, 2, 5, 10, 40, V])))
    return judged(victim.head, victim.softmax, hidden_states, k)


def coding_errors(random: Generator) -> Tally:
    """A row whose coding error and rest are parallel to the context, barely among the best.

    Its estimate is as far below its logit as the bound allows for.
    """
    D, k = int(random.choice([24, 64, 100, 200])), int(random.choice([1, 1, 2, 5, 10]))
    V = int(random.integers(16 * k, 32 * k + 1200))
    victim = sketched(softmax_of(random, V, D), random)
    tally = Tally()
    for _ in range(TIES):
        row = extreme_row(victim, random)
        h = parallel(victim, row, bool(random.integers(2)), random)
        tally.join(judged(*nearly_tied(victim, h, row, k, random)))
    return tally


def whole_numbers(random: Generator) -> Tally:
    """Rows and contexts that codes hold exactly: rounding alone separates bounds from logits."""
    k = int(random.choice([1, 2, 5]))
    victim, h = coded_exactly(random, int(random.integers(16 * k, 800)))
    row = int(random.integers(victim.softmax.vocab_size))
    return judged(*nearly_tied(victim, h, row, k, random))


def coded_exactly(random: Generator, V: int) -> tuple[Sketched, Float32]:
    """Rows of whole numbers, coded without an error or a rest, and such a context [D]."""
    D = int(random.choice([1, 4, 16, 31, 50]))
    W = random.integers(-127, 128, (V, D)).astype(np.float32)
    W[:, random.integers(D)] = 127  # the scale is a power of two then
    W *= np.float32(2.0 ** random.integers(-20, 20))
    softmax = Softmax(W, np.zeros(V, np.float32))
    turned = rotate(softmax, rounded(np.eye(D)))
    arrays = code(turned, 64)
    h = random.integers(-16256, 16257, D).astype(np.float32)
    h[random.integers(D)] = 16256  # the largest code: its scale is a power of two too
    h *= np.float32(2.0 ** random.integers(-9, 9))
    return Sketched(softmax, turned, arrays), h


def near_ties(random: Generator) -> Tally:
    """Groups of rows whose logits differ in their last bits, or not at all."""
    D, V = int(random.choice(DIMS)), int(random.integers(60, 900))
    softmax = softmax_of(random, V, D)
    victim, tally = sketched(softmax, random), Tally()
    for h in contexts_of(random, softmax, TIES):
        k = int(random.choice([1, 3, 10, V // 16 + 1]))
        tally.join(judged(*nearly_tied(victim, h, int(random.integers(V)), k, random)))
    return tally


def masked_ties(random: Generator) -> Tally:
    """Masks of all densities over near ties; some leave fewer ids than are asked for."""
    D, V = int(random.choice(DIMS)), int(random.integers(60, 900))
    softmax = softmax_of(random, V, D)
    victim, tally = sketched(softmax, random), Tally()
    for h in contexts_of(random, softmax, TIES):
        k = int(random.choice([1, 3, 10, V // 16 + 1]))
        head, tied, near, k = nearly_tied(victim, h, int(random.integers(V)), k, random)
        bits = random.random((len(near), V)) < 10.0 ** random.uniform(-3, 0)
        bits[:, random.integers(V)] = True
        left = np.where(bits, logits64(tied.weight, tied.bias, near), -np.inf)
        ids = np.argsort(-left, axis=1, kind="stable")[:, :k]
        logits = np.take_along_axis(left, ids, axis=1).astype(np.float32)
        ids[logits == -np.inf] = -1
        for each in (head, FullHead(tied)):
            top = each.masked(packed(bits)).topk(near, k)
            wrong = (top.ids != ids).any(axis=1) | ~top.proven | (top.logits != logits).any(axis=1)
            tally.add(wrong, partial("{} V={} k={} row {}".format, each.name, V, k))
    return tally


def one_way_roundings(random: Generator) -> Tally:
    """The full head: float32 dots whose every rounding goes the same way, beside others."""
    D, V, B = int(random.choice([64, 512, 2048])), int(random.integers(20, 200)), 4
    W, h = one_way(random, V, D)
    logits = logits64(W, np.zeros(V, np.float32), h[None])[0]
    bias = tying_biases(logits, int(random.integers(V)), random)
    softmax = Softmax(W, bias)
    return judged(FullHead(softmax), softmax, around(h, B, random), int(random.integers(1, 12)))


def codes_off_one_way(random: Generator) -> Tally:
    """The full head over blocks: codes of contexts are off along a row, barely among the best."""
    kind = str(random.choice(BLOCKS))
    D, V = KINDS[kind].values * int(random.integers(1, 4)), int(random.integers(20, 300))
    scales = 10.0 ** random.uniform(-2, 2, (V, D // KINDS[kind].values))
    matrix = random_blocks(kind, scales, int(random.integers(1 << 30)))
    softmax = Softmax(matrix, np.zeros(V, np.float32))
    row, side = int(random.integers(V)), random.choice([-0.49, 0.49])
    h = random.integers(-300, 300, D) + side * np.sign(softmax.weight[row])
    h[random.integers(D)] = LARGEST_CODE  # so that codes are the nearest whole numbers
    h = (h * 2.0 ** random.integers(-12, 3)).astype(np.float32)
    logits = logits64(softmax.weight, softmax.bias, h[None])[0]
    tied = Softmax(matrix, tying_biases(logits, row, random))
    return judged(FullHead(tied), tied, around(h, AT_ONCE, random), int(random.integers(1, 12)))


def one_way(random: Generator, V: int, D: int) -> tuple[Float32, Float32]:
    """Rows and a context whose float32 products past the first lanes all round down, or to nothing.

    Each lane holds a large number first, and then is added to what rounding drops.
    """
    size = 4.0 ** random.integers(-3, 4)
    h, w = np.empty(D, np.float32), np.empty(D, np.float32)
    w[:16] = np.sqrt(size)
    h[:16] = size * (1 + 2.0**-20) / w[:16]
    dropped = size * 2.0**-24 * 0.98
    w[16:] = np.sqrt(dropped)
    h[16:] = dropped / w[16:]
    W = np.repeat(w[None], V, axis=0)
    others = random.random(V) < random.choice([0, 0.1, 0.5])
    W[others] += (0.01 * random.standard_normal((int(others.sum()), D))).astype(np.float32)
    return W, h


def extreme_row(victim: Sketched, random: Generator) -> int:
    """A row whose coding error is nearly kappa times its scale, or any."""
    coded, scales = victim.decoded(bool(random.integers(2)))
    errors = np.linalg.norm(victim.turned.rows[:, : coded.shape[1]] - coded, axis=1) / scales
    return int(np.argsort(-errors)[random.integers(min(5, len(errors)))])


def parallel(victim: Sketched, row: int, last: bool, random: Generator) -> Float32:
    """[D] a context whose coordinates are those of the row's coding errors or of its tail.

    And of its residual, which is outside of all coordinates.
    """
    coded, _ = victim.decoded(last)
    basis, F = basis_of(victim.arrays), widths_of(victim.arrays).coarse
    turned = victim.turned.rows[row].astype(np.float64)
    outside = victim.softmax.weight[row] - turned @ basis
    error = turned - coded[row]
    tail = turned[F:] if random.random() < 0.3 else error[F:]
    c = np.concatenate([_unit(error[:F]), _unit(tail) * 10.0 ** random.uniform(-2, 2)])
    h = np.linalg.solve(basis, c) + _unit(outside) * 10.0 ** random.uniform(-9, -2)
    size = np.linalg.norm(victim.softmax.weight.astype(np.float64), axis=1).max()
    h *= random.choice([-1, 1]) * 10.0 ** random.uniform(-2, 2) / max(np.linalg.norm(h), 1e-300)
    return np.ascontiguousarray(h / max(1.0, size * 1e-30), np.float32)


def _unit(vector: Float64) -> Float64:
    return vector / max(float(np.linalg.norm(vector)), 1e-300)


def nearly_tied(
    victim: Sketched, h: Float32, row: int, k: int, random: Generator
) -> tuple[Head, Softmax, Float32, int]:
    """Return arguments of `judged`: for h the logits of `row` and of k others are close."""
    softmax, none = victim.softmax, np.zeros(victim.softmax.vocab_size, np.float32)
    logits = logits64(softmax.weight, none, h[None])[0]
    tied = victim.biased(tying_biases(logits, row, random, k))
    return tied.head, tied.softmax, around(h, ROWS // 2, random), k


def tying_biases(logits: Float64, row: int, random: Generator, k: int = 1) -> Float32:
    """[V] biases by which some rows' logits are within some roundings of that of `row`."""
    V = len(logits)
    aim = logits[row] + random.choice([0.0, 1.0, -30.0]) * np.abs(logits).max()
    gaps = random.exponential(2.0 ** random.uniform(-26, -18), V) * max(abs(aim), 1e-30)
    far = random.random(V) < random.choice([0.0, 0.5, 0.95])
    far[random.permutation(V)[: 2 * k]] = False
    gaps[far] += np.abs(logits).max() * random.uniform(0.01, 3)
    gaps[row] = 0
    biases: Float32 = (aim - logits - gaps).astype(np.float32)
    return biases


def around(h: Float32, B: int, random: Generator) -> Float32:
    """[B, D] a context, first as it is, then a little off."""
    noise = 2.0 ** random.uniform(-30, -8, (B, 1)) * random.standard_normal((B, len(h)))
    noise[0] = 0
    near: Float32 = (h * (1 + noise)).astype(np.float32)
    return near


def judged(head: Head, softmax: Softmax, hidden_states: Float32, k: int) -> Tally:
    """One call of `topk`, compared with all logits."""
    answer = head.topk(hidden_states, k)
    ids, logits = best(softmax.weight, softmax.bias, hidden_states, k)
    wrong = (answer.ids != ids).any(axis=1) | ~answer.proven
    wrong |= (answer.logits != logits.astype(np.float32)).any(axis=1)

    def describe(place: int) -> str:
        got, sizes = answer.ids[place], f"V={softmax.vocab_size} D={softmax.dim} k={k}"
        return f"{sizes} row {place}: ids {got[:5]}, truth {ids[place][:5]}"

    return Tally().add(wrong, describe)


ATTACKS = {
    "topk-odd-matrices": odd_matrices,
    "topk-coding-errors": coding_errors,
    "topk-whole-numbers": whole_numbers,
    "topk-near-ties": near_ties,
    "topk-masked-ties": masked_ties,
    "topk-one-way-roundings": one_way_roundings,
    "topk-codes-off-one-way": codes_off_one_way,
}
