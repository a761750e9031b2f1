"""The sketch without levels: coordinates of every row in bytes, and norms of the remainder.

docs/certified.md derives the bound: computed in float64 from the stored arrays, rounded up.

Shape letters: M coded coordinates.
"""

from collections.abc import Callable, Iterator
from functools import cache, lru_cache
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from logitsieve.api.results import Float32, Float64, Int32
from logitsieve.evaluation import us_per_row
from logitsieve.heads import SketchHead, Softmax
from logitsieve.index.sketch_rows import spectral_norms
from logitsieve.index.verify import counter
from logitsieve.index.writer import matrix_changed
from logitsieve.index_builder.fit.rotated_rows import BLOCK_ROWS, Turned, Turning, factored, turn
from logitsieve.index_builder.fitting import (
    BuildInputs,
    FitInputs,
    FitResult,
    label_counts,
    sample_rows,
)
from logitsieve.kernels.simd.lanes import LANES
from logitsieve.kernels.sketch.encode import MOST, ROUNDED, SHARE
from logitsieve.kernels.sketch.sketch import COARSE_EXTRA, EXTRA

COARSE = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512)  # bytes of coarse codes tried
FINE = (64, 128, 192, 256, 384, 512, 768, 1024)  # bytes of fine ones
START = (1, 1)  # places in these
TIMED_ROWS, TIMED_K, TIMINGS = 256, 5, 3
LEAST_SCALE = 1e-30  # a normal number in float32, and so are quotients
SHARES = (4, 6, 8, 12, 16)  # sixteenths of D tried as the number of coordinates
MOMENT_ROWS = 1 << 15
RIDGE = 0.01  # of the identity in second moments of trace 1
SPAN_STEPS = 3  # towards the best span: to within 1e-4 of the least outside
LARGEST_NORM = 1e100  # above any spectral norm of float32 numbers


class Widths(NamedTuple):
    """Bytes a row of the two codings; the fine one with its scale and norm."""

    coarse: int
    fine: int

    @property
    def memory(self) -> int:
        return self.coarse + COARSE_EXTRA + self.fine + 4  # 4 for its place in the order


class _Codes(NamedTuple):
    codes: np.ndarray  # uint8 [R, m], 128 more than the whole numbers they stand for
    scales: Float32  # [R]
    error: float  # kappa: the largest coding error over its scale
    length: float  # Q: the largest norm over its scale


def fit_sketch(inputs: FitInputs) -> FitResult:
    """Return the sketch measured fastest within its share of memory; the first if reproducible."""
    softmax, share = inputs.softmax, inputs.config.sketch_memory
    moments = row_moments(softmax), second_moments(inputs.sample)
    order_V = np.argsort(-label_counts(inputs), kind="stable").astype(np.int32)
    hidden, k = inputs.heldout.sample(TIMED_ROWS), min(TIMED_K, softmax.vocab_size)
    measured: dict[tuple[Widths, int], float] = {}

    @cache
    def turning(count: int) -> Turning:
        return factored(*narrow_rotation(*moments, count))

    @lru_cache(maxsize=2)
    def turned(count: int) -> Turned:
        return turn_all(inputs, turning(count))

    def time(widths: Widths, count: int) -> float:
        if (widths, count) not in measured:
            head = SketchHead(softmax, code(softmax, turned(count), widths, order_V))
            runs = (us_per_row(head, hidden, k, 1, calls=len(hidden)) for _ in range(TIMINGS))
            measured[widths, count] = min(runs)
            inputs.progress("sketch", len(measured), 0)
        return measured[widths, count]

    counts = _counts(softmax.dim)
    count = first = counts[len(counts) // 2]
    best = _first(softmax.dim, share)
    if not inputs.config.reproducible:
        best = fastest(lambda widths: time(widths, first), softmax.dim, share)
        count = min(counts, key=lambda count: time(best, count))
    if count != first:
        best = fastest(lambda widths: time(widths, count), softmax.dim, share)
    return _result(inputs, turned(count), best, order_V)


def fit_without_contexts(inputs: BuildInputs) -> FitResult:
    softmax = inputs.softmax
    counts = _counts(softmax.dim)
    moments = row_moments(softmax), np.eye(softmax.dim) / softmax.dim
    turned = turn_all(inputs, factored(*narrow_rotation(*moments, counts[len(counts) // 2])))
    widths = _first(softmax.dim, inputs.config.sketch_memory)
    return _result(inputs, turned, widths, np.arange(softmax.vocab_size, dtype=np.int32))


def turn_all(inputs: BuildInputs, turning: Turning) -> Turned:
    """Return all rows in other coordinates; InvalidRequest if W has changed since it was hashed."""
    made = turn(inputs.softmax, turning, inputs.workers)
    if made.sha256 != inputs.softmax.sha256:
        raise matrix_changed()
    return made


def _result(inputs: BuildInputs, turned: Turned, widths: Widths, order_V: Int32) -> FitResult:
    arrays = code(inputs.softmax, turned, widths, order_V)
    report = counter(inputs.progress, "norms", inputs.softmax.vocab_size)
    arrays["norms"] = spectral_norms(inputs.softmax, arrays, report)
    return FitResult(arrays, {**widths._asdict(), "coordinates": turned.rows.shape[1]}, {})


def _counts(dim: int) -> list[int]:
    return sorted({-(-share * dim // 16) for share in SHARES}) if dim > LANES else [dim]


def _first(dim: int, share: float) -> Widths:
    start = Widths(COARSE[START[0]], FINE[START[1]])
    return start if start.memory <= share * 4 * dim else Widths(COARSE[0], FINE[0])


def fastest(time: Callable[[Widths], float], dim: int, share: float) -> Widths:
    best = _first(dim, share)
    while True:
        lines = [Widths(coarse, best.fine) for coarse in COARSE]
        lines += [Widths(best.coarse, fine) for fine in FINE]
        near = min((w for w in lines if _allowed(w, dim, share)), key=time, default=best)
        if time(near) >= time(best):
            return best
        best = near


def _allowed(widths: Widths, dim: int, share: float) -> bool:
    fits = widths.memory <= share * 4 * dim and widths.fine < 2 * max(dim, FINE[0])
    return fits and widths.coarse <= widths.fine


def balanced(rows_PP: Float64, contexts_PP: Float64) -> Float64:
    """Return B [P, P]: contexts become B h and rows w B^-1, with one covariance, largest first.

    With X the second moments of rows, Y of contexts, and T^2 the geometric mean of X and Y^-1, T h
    and T^-1 w have the same second moments, and their eigenvectors are the coordinates.
    """
    root_PP, inverse_PP = _power(contexts_PP, 0.5), _power(contexts_PP, -0.5)
    mean_PP = inverse_PP @ _power(root_PP @ rows_PP @ root_PP, 0.5) @ inverse_PP
    T_PP = _power(mean_PP, 0.5)
    directions_PP = np.linalg.eigh(T_PP @ contexts_PP @ T_PP)[1][:, ::-1]
    return np.ascontiguousarray(directions_PP.T @ T_PP, np.float64)


def narrow_rotation(rows_DD: Float64, contexts_DD: Float64, count: int) -> tuple[Float64, Float64]:
    """(A [P, D], stretch E [D]) for `count` = P, by second moments of rows and contexts.

    Contexts become A h and, outside its span, E h. The span minimises the mean of ||w / E||^2 times
    the mean of ||E h||^2 outside it; coordinates within it are `balanced`.
    """
    if count >= len(rows_DD):
        return balanced(rows_DD, contexts_DD), np.ones(len(rows_DD))
    stretch_D = (np.diag(rows_DD) / np.diag(contexts_DD)) ** 0.25
    rows_DD = rows_DD / np.outer(stretch_D, stretch_D)
    contexts_DD = contexts_DD * np.outer(stretch_D, stretch_D)
    outside = np.array([1.0, 1.0])
    for _ in range(SPAN_STEPS):
        both_DD = rows_DD / outside[0] + contexts_DD / outside[1]
        span_DP = np.linalg.eigh(both_DD)[1][:, : -count - 1 : -1]
        inside = [span_DP.T @ each_DD @ span_DP for each_DD in (rows_DD, contexts_DD)]
        totals = np.trace(rows_DD), np.trace(contexts_DD)
        outside = np.array([t - np.trace(each) for t, each in zip(totals, inside, strict=True)])
    ratio = (outside[1] / outside[0]) ** 0.25
    balanced_PP = balanced(*inside) * ratio
    return balanced_PP @ span_DP.T * stretch_D, stretch_D


def second_moments(matrix: Float32, ridge: float = RIDGE) -> Float64:
    dim = matrix.shape[1]
    sum_DD = np.zeros((dim, dim))
    scale = max(float(np.abs(matrix).max()), float(np.finfo(np.float32).tiny))
    for rows_RD in _blocks(matrix):
        sum_DD += (rows_RD / scale).T @ (rows_RD / scale)
    identity_DD = np.eye(dim) / dim
    moments_DD: Float64 = sum_DD / max(float(np.trace(sum_DD)), 1e-30) + ridge * identity_DD
    return moments_DD


_moments: WeakKeyDictionary[Softmax, Float64] = WeakKeyDictionary()


def row_moments(softmax: Softmax, ridge: float = RIDGE) -> Float64:
    if softmax not in _moments:
        rows = sample_rows(softmax.vocab_size, MOMENT_ROWS, 0)
        _moments[softmax] = second_moments(softmax.rows(rows), 0.0)
    moments_DD: Float64 = _moments[softmax] + ridge * (np.eye(softmax.dim) / softmax.dim)
    return moments_DD


def _power(matrix_DD: Float64, power: float) -> Float64:
    values_D, vectors_DD = np.linalg.eigh(matrix_DD)
    floor = max(float(values_D.max()), 1e-30) * 1e-12
    raised_DD: Float64 = (vectors_DD * np.maximum(values_D, floor) ** power) @ vectors_DD.T
    return raised_DD


def _blocks(matrix: Float32) -> Iterator[Float64]:
    for start in range(0, len(matrix), BLOCK_ROWS):
        yield matrix[start : start + BLOCK_ROWS].astype(np.float64)


def code(softmax: Softmax, turned: Turned, widths: Widths, order_V: Int32) -> dict[str, np.ndarray]:
    """Return the `sketch` part of these widths; coarse codes are in the order of ids `order_V`."""
    V, P = turned.rows.shape
    M = min(P, widths.fine - EXTRA)
    F = min(M, widths.coarse)
    coarse_VF = np.full((V, widths.coarse), MOST + 1, np.uint8)
    scales_V, rests_V = np.empty(V, np.float32), np.empty(V, np.float32)
    fine_VT = np.full((V, widths.fine), MOST + 1, np.uint8)
    extras_V2 = fine_VT[:, -EXTRA:].view(np.float32)
    limits = np.array([0, 0, 0, 0, turned.left])
    for number, turned_RP in enumerate(_blocks(turned.rows)):
        here = slice(number * BLOCK_ROWS, number * BLOCK_ROWS + len(turned_RP))
        norms_R = np.linalg.norm(turned_RP, axis=1)
        coarse = encode_rows(turned_RP[:, :F], norms_R)
        fine = encode_rows(turned_RP[:, :M], norms_R)
        coarse_VF[here, :F], scales_V[here] = coarse.codes, coarse.scales
        rests_V[here] = _rounded_up(turned_RP[:, F:], turned.outside[here])
        fine_VT[here, :M], extras_V2[here, 0] = fine.codes, fine.scales
        extras_V2[here, 1] = _rounded_up(turned_RP[:, M:], turned.outside[here])
        limits[:4] = np.maximum(limits[:4], [*coarse[2:], *fine[2:]])
    limits *= ROUNDED
    return {
        **turned.turning.arrays,
        "coarse": _grouped(coarse_VF, scales_V, rests_V, softmax.bias, order_V),
        "fine": fine_VT,
        "order": order_V,
        "limits": limits,
        "norms": np.full(6, LARGEST_NORM),  # no top k needs true ones
    }


def _grouped(
    coarse_VF: np.ndarray, scales_V: Float32, rests_V: Float32, bias_V: Float32, order_V: Int32
) -> np.ndarray:
    """uint8 [G, S]: groups of sixteen rows, quads of codes, scales, norms, biases (-inf pads)."""
    V, F = coarse_VF.shape
    groups = -(-V // LANES)
    rows = np.full((groups * LANES, F), MOST + 1, np.uint8)
    rows[:V] = coarse_VF[order_V]
    quads = rows.reshape(groups, LANES, F // 4, 4).transpose(0, 2, 1, 3).reshape(groups, -1)
    numbers = np.zeros((3, groups * LANES), np.float32)
    numbers[2] = -np.inf
    numbers[:, :V] = scales_V[order_V], rests_V[order_V], bias_V[order_V]
    lanes = (each.reshape(groups, LANES).view(np.uint8) for each in numbers)
    return np.concatenate([quads, *lanes], axis=1)


def encode_rows(turned_Rm: Float64, norms_R: Float64) -> _Codes:
    """Code some coordinates of rows of these norms; errors are of the codes as stored."""
    most_R = np.abs(turned_Rm).max(axis=1) / MOST
    scales_R = np.maximum(np.maximum(most_R, SHARE * norms_R), LEAST_SCALE).astype(np.float32)
    steps_R = scales_R.astype(np.float64)
    whole_Rm = np.clip(np.rint(turned_Rm / steps_R[:, None]), -MOST, MOST)
    errors_R = np.linalg.norm(turned_Rm - whole_Rm * steps_R[:, None], axis=1) / steps_R
    lengths_R = np.linalg.norm(turned_Rm, axis=1) / steps_R
    codes_Rm = (whole_Rm + (MOST + 1)).astype(np.uint8)
    return _Codes(codes_Rm, scales_R, float(errors_R.max()), float(lengths_R.max()))


def _rounded_up(others_Rm: Float64, outside_R: Float64) -> Float32:
    norms_R = np.hypot(np.linalg.norm(others_Rm, axis=1), outside_R) * ROUNDED
    return np.asarray(np.nextafter(norms_R.astype(np.float32), np.float32(np.inf)))
