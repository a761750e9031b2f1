"""Fits `sketch`: the first coordinates of each row in eight bits, the others, rotated, in four.

docs/sketch.md derives the bounds; kernels/sketch/levels.py has the layout.

Shape letters: F coordinates in `coarse`, T others, W of these padded.
"""

import hashlib
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from logitsieve.api.results import Float32, Float64
from logitsieve.heads import FullHead, SketchHead, Softmax
from logitsieve.heads._base.head import begin_sha256
from logitsieve.heads._base.spec import Arrays
from logitsieve.index.reader import Report
from logitsieve.index.sketch_rows import Solver, solve
from logitsieve.index.verify import counter
from logitsieve.index.writer import matrix_changed
from logitsieve.index_builder.fitting import DEPTH, BuildInputs, FitResult, fastest, sample_rows
from logitsieve.index_builder.workers import Shared, Workers, one_thread
from logitsieve.kernels.rows.functions import decoded
from logitsieve.kernels.simd.lanes import LANES
from logitsieve.kernels.simd.shorts import floats_of, shorts_of, start_of, step_of
from logitsieve.kernels.sketch.encode import LEAST_SCALE, MOST, ROUNDED, encode_rows, scales_of_rows
from logitsieve.kernels.sketch.levels import (
    HEAD_SCALE,
    LEVEL_COUNT,
    LEVEL_EXTRA,
    LEVELS,
    NUMBERS,
    NUMBERS_IN,
    STEP,
    TAIL_LENGTH,
    TAIL_QUANTUM,
)
from logitsieve.kernels.sketch.sketch import widths_of
from logitsieve.utils.stored import StoredMatrix

BLOCK_ROWS = 4096
ROTATION = 1
# Weights of the identity in second moments of rows and contexts, since other text has others.
RIDGE, CONTEXT_RIDGE = 0.02, 0.1
WIDTHS = 16, 32, 64  # coordinates in eight bits; 128 would be slower for one row a call
MOMENT_ROWS, CONTEXTS = 1 << 15, 8192
# A softmax is steep if level 0 leaves less than this share of the rows. It leaves 0.14 for an LSTM
# with D = 200, 0.82 for SmolLM2.
STEEP = 0.25
JUDGED_ROWS, JUDGING = 1 << 14, 64


class RotatedRows(NamedTuple):
    """Rows w' of a sketch: w . h = w' . (U h) + u . h with u = w - U^T w'."""

    directions: np.ndarray  # U [D, D], float16
    rows: Float32  # w' [V, D]
    left: float  # >= ||u||
    sha256: str = ""  # of the rows w and biases that were read


def rounded(basis_DD: Float64) -> np.ndarray:
    """Round to float16 after scaling the largest entry to [1, 2); 2^-24 is the least step then."""
    scaled_DD = np.ldexp(basis_DD, 1 - int(np.frexp(np.abs(basis_DD).max())[1]))
    return np.asarray(scaled_DD.astype(np.float16, order="C"))


class _Rows(NamedTuple):
    matrix: StoredMatrix
    solver: Solver


def rotate(softmax: Softmax, directions: np.ndarray, workers: Workers | None = None) -> RotatedRows:
    V = softmax.vocab_size
    turned_VD, left = np.empty((V, len(directions)), np.float32), 0.0
    matrix = softmax.matrix
    arrays = softmax.stored, directions
    shared = Shared(_rows(*arrays, matrix.kind), _rows, arrays, (matrix.kind,))
    starts = range(0, V, BLOCK_ROWS)
    results = (workers or Workers()).map(turn_block, ((shared, start) for start in starts))
    digest, same = begin_sha256(matrix), True
    for start, (rows_RD, most, sha256) in zip(starts, results, strict=True):
        data = matrix[start : start + BLOCK_ROWS].copy().data.data.cast("B")
        digest.update(data)
        # The rows that are hashed must be those that were rotated.
        same &= hashlib.sha256(data).digest() == sha256
        turned_VD[start : start + len(rows_RD)], left = rows_RD, max(left, most)
    digest.update(softmax.bias.data)
    return RotatedRows(directions, turned_VD, left, digest.hexdigest() if same else "")


def turn_block(rows: _Rows, start: int) -> tuple[Float32, float, bytes]:
    block = rows.matrix[start : start + BLOCK_ROWS].copy()
    weight_RD = decoded(block).astype(np.float64)
    turned_RD = (weight_RD @ rows.solver.inverse).astype(np.float32)
    # Two roundings, because the check of a sketch recomputes w', which may round differently.
    kept_RD = turned_RD.astype(np.float64)
    left_R = rows.solver.residuals(weight_RD, kept_RD, roundings=2)
    return turned_RD, float(left_R.max()), hashlib.sha256(block.data.data).digest()


def _rows(stored: np.ndarray, directions: np.ndarray, kind: str) -> _Rows:
    return _Rows(StoredMatrix(kind, stored), solve({"directions": directions}))


def fit_sketch(inputs: BuildInputs) -> FitResult | None:
    """Return the sketch, or None if measured to be no faster than all logits.

    Nothing is measured if the heads were named, the build is reproducible, or no contexts are held
    out.
    """
    softmax, seed, progress = inputs.softmax, inputs.config.seed, inputs.progress
    contexts_DD = np.eye(softmax.dim) / softmax.dim
    if inputs.train.rows:
        sampled = inputs.train.take(sample_rows(inputs.train.rows, CONTEXTS, seed))
        contexts_DD = second_moments(sampled, CONTEXT_RIDGE)
    with one_thread():  # more threads take no less time
        basis_DD = balanced(row_moments(softmax, RIDGE), contexts_DD)
    progress("basis", 1, 1)
    threads, first = inputs.config.threads, width_of(softmax.dim)
    turned = rotate_all(inputs, rounded(rotated_at_random(basis_DD, first, seed)))
    arrays = code(turned, first, threads, counter(progress, "codes", softmax.vocab_size))
    if inputs.heldout.rows > 0 and not (inputs.config.reproducible or inputs.named):
        full = FullHead(softmax, threads=threads)
        heads = {0: full, first: SketchHead(softmax, arrays, fallback=full, threads=threads)}
        if fastest(heads, lambda width: inputs.trial.us(heads[width])) == 0:
            return None
    return FitResult(arrays, {"coarse": first, "coordinates": softmax.dim}, {})


def width_of(dim: int) -> int:
    """Return the widest of WIDTHS up to a quarter of a row, or the narrowest."""
    return max((width for width in WIDTHS if width <= dim // 4), default=WIDTHS[0])


def steep(inputs: BuildInputs, sketch: Arrays) -> bool:
    """Return whether the bounds of level 0 alone leave few rows for a proven top 5."""
    softmax, first = inputs.softmax, widths_of(sketch).coarse
    hidden_ND = inputs.heldout.sample(JUDGING)
    top = FullHead(softmax).topk(hidden_ND, min(DEPTH, softmax.vocab_size))
    rows = sample_rows(softmax.vocab_size, JUDGED_ROWS, 0)
    basis_DD = sketch["directions"].astype(np.float64)
    rows_RD = softmax.rows(rows).astype(np.float64) @ np.linalg.inv(basis_DD)
    turned_ND = hidden_ND.astype(np.float64) @ basis_DD.T
    tails = [np.linalg.norm(each[:, first:], axis=1) for each in (rows_RD, turned_ND)]
    uppers_RN = rows_RD[:, :first] @ turned_ND[:, :first].T + np.multiply.outer(*tails)
    uppers_RN += softmax.bias[rows].astype(np.float64)[:, None]
    return bool((uppers_RN >= top.logits[:, -1]).mean() < STEEP)


def rotate_all(inputs: BuildInputs, directions: np.ndarray) -> RotatedRows:
    """Rotate all rows. InvalidRequest if W has changed since it was hashed."""
    made = rotate(inputs.softmax, directions, inputs.workers)
    if made.sha256 != inputs.softmax.sha256:
        raise matrix_changed()
    return made


def balanced(rows_PP: Float64, contexts_PP: Float64) -> Float64:
    """Return B [P, P] so that B h and w B^-1 have the same, diagonal second moments, largest first.

    X are the second moments of rows, Y those of contexts. If T^2 is the geometric mean of X and
    Y^-1, then T h and T^-1 w have the same second moments. Their eigenvectors rotate T to B.
    """
    root_PP, inverse_PP = _power(contexts_PP, 0.5), _power(contexts_PP, -0.5)
    mean_PP = inverse_PP @ _power(root_PP @ rows_PP @ root_PP, 0.5) @ inverse_PP
    T_PP = _power(mean_PP, 0.5)
    directions_PP = np.linalg.eigh(T_PP @ contexts_PP @ T_PP)[1][:, ::-1]
    return np.ascontiguousarray(directions_PP.T @ T_PP, np.float64)


def second_moments(matrix: Float32, ridge: float) -> Float64:
    dim = matrix.shape[1]
    sum_DD = np.zeros((dim, dim))
    scale = max(float(np.abs(matrix).max()), float(np.finfo(np.float32).tiny))
    for rows_RD in _blocks(matrix):
        sum_DD += (rows_RD / scale).T @ (rows_RD / scale)
    identity_DD = np.eye(dim) / dim
    moments_DD: Float64 = sum_DD / max(float(np.trace(sum_DD)), 1e-30) + ridge * identity_DD
    return moments_DD


_moments: WeakKeyDictionary[Softmax, Float64] = WeakKeyDictionary()


def row_moments(softmax: Softmax, ridge: float) -> Float64:
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


def rotated_at_random(rotation_PD: Float64, first: int, seed: int) -> Float64:
    """Rotate all but the `first` coordinates by a random (Haar) rotation."""
    count = max(len(rotation_PD) - first, 0)
    gauss = np.random.default_rng([seed, ROTATION]).standard_normal((count, count))
    axes, upper = np.linalg.qr(gauss)
    return np.vstack([rotation_PD[:first], (axes * np.sign(np.diag(upper))) @ rotation_PD[first:]])


def code(
    turned: RotatedRows, first: int, threads: int = 1, report: Report = lambda rows: None
) -> dict[str, np.ndarray]:
    rows_VP = turned.rows
    (V, P), groups = rows_VP.shape, -(-len(rows_VP) // LANES)
    padded = -(-max(P - first, 0) // TAIL_QUANTUM) * TAIL_QUANTUM
    made = {
        "directions": turned.directions,
        "coarse": np.zeros((groups, LANES * (first + LEVEL_EXTRA)), np.uint8),
    }
    for level in LEVELS:
        made[level.array] = np.zeros((groups, level.group_bytes(padded)), np.uint8)
    made["coarse"][-1, : LANES * first] = MOST + 1
    exact, norms = np.empty((2, 1 + LEVEL_COUNT, V), np.float32)
    coded, limits = [made[name] for name in NUMBERS_IN], []

    def scale(start: int) -> None:
        scales_of_rows.entry()(rows_VP, first, exact, start, min(start + BLOCK_ROWS, V))

    def encode(start: int) -> tuple[Float64, int]:
        most, stop = np.zeros(4), min(start + BLOCK_ROWS, V)
        encode_rows.entry()(rows_VP, first, scales, *coded, norms, most, start, stop)
        return most, stop - start

    with ThreadPoolExecutor(threads) as pool, one_thread():
        list(pool.map(scale, range(0, V, BLOCK_ROWS)))
        step = step_of(iter(exact), LEAST_SCALE)
        kinds = HEAD_SCALE, *(level.scale for level in LEVELS)
        starts = np.zeros(STEP + 1, np.int32)
        starts[STEP] = step
        starts[[*kinds]] = [start_of(each, step, LEAST_SCALE) for each in exact]
        codes = {
            kind: shorts_of(each, starts[kind], step, up=kind == HEAD_SCALE)
            for kind, each in zip(kinds, exact, strict=True)
        }
        scales = np.stack([floats_of(codes[kind], starts[kind], step) for kind in kinds])
        for most, count in pool.map(encode, range(0, V, BLOCK_ROWS)):
            limits.append(most)
            report(count)
    for kind, each in zip((TAIL_LENGTH, *(1 + k for k in kinds[1:])), norms, strict=True):
        starts[kind] = start_of(each, step, LEAST_SCALE)
        codes[kind] = shorts_of(each, starts[kind], step, up=True)
    _write_numbers(made, codes, V)
    most = np.max(limits, axis=0) * ROUNDED
    return made | {"starts": starts, "limits": np.array([*most, turned.left * ROUNDED])}


def _write_numbers(made: dict[str, np.ndarray], codes: Mapping[int, np.ndarray], V: int) -> None:
    groups = len(made["coarse"])
    lanes = np.zeros((len(NUMBERS), groups * LANES), np.uint16)
    for kind, each in codes.items():
        lanes[kind, :V] = each
    for name, pair in zip(NUMBERS_IN, lanes.reshape(-1, 2, groups, LANES), strict=True):
        some = np.ascontiguousarray(pair.swapaxes(0, 1)).reshape(groups, -1)
        made[name][:, -LANES * LEVEL_EXTRA :] = some.view(np.uint8)
