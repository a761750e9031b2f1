"""A sketch with levels: the first coordinates in eight bits, the others turned at random in four.

docs/levels.md derives the bounds, kernels/sketch/levels.py has the layout. Numbers are computed in
float64 from the stored codes, and rounded so that bounds can only grow.

Shape letters: V vocabulary, D hidden size, P coordinates, F of them in `coarse`, T others, W of
these padded, G groups of 16 rows, N contexts, R rows of a block.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from logitsieve.api.results import Float32, Float64, Int32
from logitsieve.heads import ExactHead, Softmax
from logitsieve.index.sketch_rows import LEAST_LENGTH, LEVEL_BITS, level_codes
from logitsieve.index_builder.data.contexts import Contexts
from logitsieve.index_builder.fit.certified import (
    COARSE,
    FINE,
    LARGEST_NORM,
    LEAST_SCALE,
    ROUNDED,
    any_direction,
    balanced,
    encode_rows,
    in_lanes,
    in_order,
    quads_of,
    second_moments,
    turn_all,
    with_norms,
)
from logitsieve.index_builder.fit.rotated_rows import BLOCK_ROWS, Turned, factored
from logitsieve.index_builder.fitting import BuildInputs, FitResult, sample_rows
from logitsieve.kernels.simd.lanes import LANES
from logitsieve.kernels.sketch.levels import APART, TAIL_QUANTUM
from logitsieve.kernels.sketch.sketch import COARSE_EXTRA, EXTRA, LEVELS_EXTRA

ROTATION = 1  # the stream of random numbers that draws it
STEP = 0.29  # of four-bit codes, in deviations: the least error of sixteen levels of a normal law
ERRORS = (0.756, 0.365, 0.116)  # of a tail's length that a level leaves, for a normal law
RIDGE = 0.02  # of the identity in second moments: contexts of other text have other directions
FIRST = 64  # coordinates in eight bits: fastest of 32 to 128 on two published models
LEAST_DIM = 192  # of a row whose codes are much shorter than the row
MOMENT_ROWS = 8192  # contexts that choose the basis
JUDGED_ROWS, JUDGING = 16384, 64  # rows and contexts that estimate what is read
DEPTH = 5
SCATTERED = 2  # times as long as a byte in order takes one that is not


class TailCodes(NamedTuple):
    """Codes of tails, and for each level the scales, the norms of errors, and the longest codes."""

    codes: np.ndarray  # uint8 [V, W], 0 .. 15
    scales: Float32  # [3, V]
    norms: Float32  # [3, V]
    longest: Float64  # [3]


def fit_levels(inputs: BuildInputs) -> FitResult | None:
    """The sketch with levels; None where a sketch without them has less to read.

    What either reads is estimated from a sample of rows and held-out contexts, not timed. Without
    contexts it is made for any direction of h, wherever rows are long enough.
    """
    softmax, seed, progress = inputs.softmax, inputs.config.seed, inputs.progress
    if softmax.dim < LEAST_DIM:
        return None
    contexts_DD = any_direction(softmax.dim)
    if inputs.train.rows:
        sampled = inputs.train.take(sample_rows(inputs.train.rows, MOMENT_ROWS, seed))
        contexts_DD = second_moments(sampled, RIDGE)
    basis_DD = balanced(second_moments(softmax.weight, RIDGE), contexts_DD)
    if inputs.heldout.rows:
        steep, level = costs(softmax, basis_DD, inputs.heldout)
        if steep < level:
            return None
    progress("basis", 1, 1)
    turned = turn_all(inputs, factored(turned_at_random(basis_DD, FIRST, seed)))
    order_V = np.arange(softmax.vocab_size, dtype=np.int32)
    arrays = code_levels(turned, softmax.bias, FIRST, order_V, inputs.config.threads)
    return with_norms(inputs, arrays, {"coarse": FIRST, "coordinates": softmax.dim})


def costs(softmax: Softmax, basis_DD: Float64, heldout: Contexts) -> tuple[float, float]:
    """Bytes a row that a proven top k reads: of the best sketch without levels, and with them."""
    hidden_ND = heldout.sample(JUDGING)
    least_N = ExactHead(softmax).topk(hidden_ND, min(DEPTH, softmax.vocab_size)).logits[:, -1]
    rows = sample_rows(softmax.vocab_size, JUDGED_ROWS, 0)
    weight_RD = softmax.rows(rows).astype(np.float64)
    bias_R1 = softmax.bias[rows].astype(np.float64)[:, None]
    rows_RD = weight_RD @ np.linalg.inv(basis_DD)
    hidden_ND = hidden_ND.astype(np.float64)
    turned_ND = hidden_ND @ basis_DD.T
    logits_RN = weight_RD @ hidden_ND.T + bias_R1
    dim, stored = softmax.dim, SCATTERED * softmax.matrix.row_bytes

    def lengths(first: int) -> Float64:
        """[R, N] the products of the norms of all but the first coordinates."""
        norms = [np.linalg.norm(each[:, first:], axis=1) for each in (rows_RD, turned_ND)]
        return np.asarray(np.multiply.outer(*norms), np.float64)

    def passing(width: int) -> float:
        estimates_RN = rows_RD[:, :width] @ turned_ND[:, :width].T + bias_R1
        return float((estimates_RN + lengths(width) >= least_N).mean())

    shares = {width: passing(width) for width in {*COARSE, *(each - EXTRA for each in FINE)}}
    steep = min(
        coarse + COARSE_EXTRA + shares[coarse] * fine + shares[fine - EXTRA] * stored
        for coarse in COARSE
        for fine in FINE
        if coarse <= fine
    )
    bits, room = (dim - FIRST) // 8, lengths(FIRST)
    _, second, last = (float((logits_RN + e * room >= least_N).mean()) for e in ERRORS)
    level = FIRST + LEVELS_EXTRA + 2 * bits + EXTRA + second * (2 * bits + EXTRA) + last * stored
    return steep, level


def encode_tails(tails_VT: Float32, outside_V: Float64, threads: int = 1) -> TailCodes:
    """Codes of tails, beside which so much of each row is not in its coordinates at all."""
    V, T = tails_VT.shape
    padded = -(-T // TAIL_QUANTUM) * TAIL_QUANTUM
    made = TailCodes(
        np.zeros((V, padded), np.uint8),
        np.empty((3, V), np.float32),
        np.empty((3, V), np.float32),
        np.zeros(3),
    )

    def encode(start: int) -> None:
        here = slice(start, min(start + BLOCK_ROWS, V))
        x_RT = tails_VT[here].astype(np.float64)
        squares_R = np.einsum("rt,rt->r", x_RT, x_RT)
        lengths_R = np.sqrt(squares_R)
        step_R1 = (STEP / np.sqrt(T) * np.maximum(lengths_R, LEAST_SCALE))[:, None]
        codes_RT = np.clip(np.floor(x_RT / step_R1) + 8, 0, 15).astype(np.uint8)
        made.codes[here, :T] = codes_RT
        for level, bits in enumerate(LEVEL_BITS):
            q_RT = level_codes(codes_RT, bits)
            along_R = np.einsum("rt,rt->r", q_RT, x_RT)
            scales_R = np.maximum(squares_R / np.maximum(along_R, LEAST_SCALE), LEAST_SCALE)
            scales_R = scales_R.astype(np.float32)
            e_RT = x_RT - q_RT * scales_R.astype(np.float64)[:, None]
            off_R = np.abs(np.einsum("rt,rt->r", e_RT, x_RT)) / np.maximum(lengths_R, LEAST_LENGTH)
            norms_R = np.linalg.norm(e_RT, axis=1) + APART * (off_R + outside_V[here])
            norms_R = np.nextafter((norms_R * ROUNDED).astype(np.float32), np.float32(np.inf))
            made.scales[level, here], made.norms[level, here] = scales_R, norms_R
            longest[level].append(np.linalg.norm(q_RT, axis=1).max() * ROUNDED)

    longest: list[list[float]] = [[], [], []]
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(encode, range(0, V, BLOCK_ROWS)))
    made.longest[:] = [max(each) for each in longest]
    return made


def bit_planes(bits_VW: np.ndarray) -> np.ndarray:
    """uint8 [V/16, 2 W] of bits of whole groups: kernels/simd/tables.py has the order."""
    bytes_VB = np.packbits(bits_VW, axis=1, bitorder="little")
    groups = bytes_VB.reshape(len(bits_VW) // LANES, LANES, -1)
    return np.ascontiguousarray(groups.transpose(0, 2, 1)).reshape(len(groups), -1)


def crumbs(codes_VW: np.ndarray) -> np.ndarray:
    """uint8 [V, W/4] of codes of two bits, four a byte: `multiply_crumbs` has the order."""
    pieces = codes_VW.reshape(len(codes_VW), -1, 4, LANES)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    packed: np.ndarray = np.bitwise_or.reduce(pieces << shifts, axis=2)
    return packed.reshape(len(codes_VW), -1)


def turned_at_random(rotation_PD: Float64, first: int, seed: int) -> Float64:
    """The change of coordinates with all but the `first` turned by a uniform (Haar) rotation.

    It is drawn apart from the sample that the seed draws, on which the coordinates depend.
    """
    count = len(rotation_PD) - first
    gauss = np.random.default_rng([seed, ROTATION]).standard_normal((count, count))
    axes, upper = np.linalg.qr(gauss)
    return np.vstack([rotation_PD[:first], (axes * np.sign(np.diag(upper))) @ rotation_PD[first:]])


def code_levels(
    turned: Turned, bias_V: Float32, first: int, order_V: Int32, threads: int = 1
) -> dict[str, np.ndarray]:
    """The `sketch` part of rows in their coordinates, the first of them in eight bits."""
    V = len(turned.rows)
    head_VF = np.empty((V, first), np.uint8)
    head_scales_V, limits = np.empty(V, np.float32), np.zeros(2)
    for start in range(0, V, BLOCK_ROWS):
        here = slice(start, min(start + BLOCK_ROWS, V))
        rows_RP = turned.rows[here].astype(np.float64)
        head = encode_rows(rows_RP[:, :first], np.linalg.norm(rows_RP, axis=1))
        head_VF[here], head_scales_V[here] = head.codes, head.scales
        limits = np.maximum(limits, head[2:])
    tails = encode_tails(turned.rows[:, first:], turned.outside, threads)
    planes = [in_order(tails.codes >> shift & 1, order_V) for shift in (3, 2)]
    quads = quads_of(in_order(head_VF, order_V, 128))
    scales, norms = tails.scales[:, order_V], tails.norms[:, order_V]
    coarse = [quads, bit_planes(planes[0]), in_lanes(head_scales_V[order_V]), in_lanes(scales[0])]
    fine = [crumbs(tails.codes[order_V] & 3), scales[2][:, None], norms[2][:, None]]
    return {
        **turned.turning._asdict(),
        "coarse": np.hstack([*coarse, in_lanes(norms[0]), in_lanes(bias_V[order_V], -np.inf)]),
        "middle": np.hstack([bit_planes(planes[1]), in_lanes(scales[1]), in_lanes(norms[1])]),
        "fine": np.hstack([np.ascontiguousarray(each).view(np.uint8) for each in fine]),
        "order": order_V,
        "limits": np.array([*limits * ROUNDED, *tails.longest[1:], turned.left * ROUNDED]),
        "norms": np.full(6, LARGEST_NORM),
    }
