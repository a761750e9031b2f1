"""A sketch with levels: the first coordinates in eight bits, the others, rotated randomly, in four.

docs/levels.md derives the bounds (float64, rounded up), kernels/sketch/levels.py has the layout.

Shape letters: F coordinates in `coarse`, T others, W of these padded.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from logitsieve.api.results import Float64
from logitsieve.heads import ExactHead, Softmax
from logitsieve.index.reader import Report
from logitsieve.index.verify import counter
from logitsieve.index_builder.contexts import Contexts
from logitsieve.index_builder.fit.rotated_rows import BLOCK_ROWS, Turned, square
from logitsieve.index_builder.fit.sketch import (
    COARSE,
    FINE,
    balanced,
    row_moments,
    second_moments,
    turn_all,
)
from logitsieve.index_builder.fitting import DEPTH, SCATTERED, BuildInputs, FitResult, sample_rows
from logitsieve.index_builder.workers import one_thread
from logitsieve.kernels.simd.lanes import LANES
from logitsieve.kernels.simd.shorts import floats_of, shorts_of, start_of, step_of
from logitsieve.kernels.sketch.encode import LEAST_SCALE, MOST, ROUNDED, encode_rows, scales_of_rows
from logitsieve.kernels.sketch.levels import (
    FIRST_NORM,
    FIRST_SCALE,
    HEAD_SCALE,
    LAST_NORM,
    LAST_SCALE,
    LEVEL_EXTRA,
    MIDDLE_NORM,
    MIDDLE_SCALE,
    NUMBERS,
    NUMBERS_IN,
    STEP,
    TAIL_LENGTH,
    TAIL_QUANTUM,
)
from logitsieve.kernels.sketch.sketch import COARSE_EXTRA, EXTRA

ROTATION = 1  # the stream of random numbers that draws it
ERRORS = (0.756, 0.365, 0.116)  # of a tail's length that a level leaves, for a normal law
# Of the identity in second moments, of rows and of contexts: other text has other directions.
RIDGE, CONTEXT_RIDGE = 0.02, 0.1
BITS = 1.5  # time of a byte of levels, summed by tables, over one of numbers
FIRST = 16  # coordinates in eight bits
LEAST_DIM = 192  # of a row much longer than its codes
MOMENT_ROWS = 8192
JUDGED_ROWS, JUDGING = 16384, 64  # rows and contexts of the estimate


def fit_levels(inputs: BuildInputs) -> FitResult | None:
    """Return the sketch with levels; None if one without them probably takes less time."""
    softmax, seed, progress = inputs.softmax, inputs.config.seed, inputs.progress
    if softmax.dim < LEAST_DIM:
        return None
    contexts_DD = np.eye(softmax.dim) / softmax.dim
    if inputs.train.rows:
        sampled = inputs.train.take(sample_rows(inputs.train.rows, MOMENT_ROWS, seed))
        contexts_DD = second_moments(sampled, CONTEXT_RIDGE)
    moments_DD = row_moments(softmax, RIDGE)
    with one_thread():  # more threads take no less time
        basis_DD = balanced(moments_DD, contexts_DD)
    threads = inputs.config.threads
    if inputs.heldout.rows:
        steep, levels = costs(softmax, basis_DD, inputs.heldout, threads)
        if steep < BITS * levels:
            return None
    progress("basis", 1, 1)
    turned = turn_all(inputs, square(turned_at_random(basis_DD, FIRST, seed)))
    report = counter(progress, "codes", softmax.vocab_size)
    arrays = code_levels(turned, FIRST, threads, report)
    return FitResult(arrays, {"coarse": FIRST, "coordinates": softmax.dim}, {})


def costs(
    softmax: Softmax, basis_DD: Float64, heldout: Contexts, threads: int = 1
) -> tuple[float, float]:
    """Return bytes a row for a proven top k: by the best sketch without levels, and with them."""
    hidden_ND = heldout.sample(JUDGING)
    exact = ExactHead(softmax, threads=threads)
    least_N = exact.topk(hidden_ND, min(DEPTH, softmax.vocab_size)).logits[:, -1]
    rows = sample_rows(softmax.vocab_size, JUDGED_ROWS, 0)
    weight_RD = softmax.rows(rows).astype(np.float64)
    bias_R1 = softmax.bias[rows].astype(np.float64)[:, None]
    rows_RD = weight_RD @ np.linalg.inv(basis_DD)
    hidden_ND = hidden_ND.astype(np.float64)
    turned_ND = hidden_ND @ basis_DD.T
    logits_RN = weight_RD @ hidden_ND.T + bias_R1
    dim, stored = softmax.dim, SCATTERED * softmax.matrix.row_bytes

    def lengths(first: int) -> Float64:
        """[R, N] products of the norms of all but the first coordinates."""
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
    bits, products = (dim - FIRST) / 8, lengths(FIRST)
    first, second, last = (float((logits_RN + e * products >= least_N).mean()) for e in ERRORS)
    zeroth = passing(FIRST)
    bytes_of = FIRST + LEVEL_EXTRA, bits + LEVEL_EXTRA, bits + LEVEL_EXTRA, 2 * bits + LEVEL_EXTRA
    levels = sum(np.multiply((1.0, zeroth, first, second), bytes_of))
    return steep, float(levels) + last * stored


def turned_at_random(rotation_PD: Float64, first: int, seed: int) -> Float64:
    """Rotate all but the `first` coordinates by a uniform (Haar) rotation from its own stream."""
    count = len(rotation_PD) - first
    gauss = np.random.default_rng([seed, ROTATION]).standard_normal((count, count))
    axes, upper = np.linalg.qr(gauss)
    return np.vstack([rotation_PD[:first], (axes * np.sign(np.diag(upper))) @ rotation_PD[first:]])


def code_levels(
    turned: Turned, first: int, threads: int = 1, report: Report = lambda rows: None
) -> dict[str, np.ndarray]:
    rows_VP = turned.rows
    (V, P), groups = rows_VP.shape, -(-len(rows_VP) // LANES)
    padded = -(-(P - first) // TAIL_QUANTUM) * TAIL_QUANTUM
    made = {
        "directions": turned.turning.directions,
        "coarse": np.zeros((groups, LANES * (first + LEVEL_EXTRA)), np.uint8),
        "first": np.zeros((groups, LANES * (padded // 8 + LEVEL_EXTRA)), np.uint8),
        "middle": np.zeros((groups, LANES * (padded // 8 + LEVEL_EXTRA)), np.uint8),
        "fine": np.zeros((groups, LANES * (padded // 4 + LEVEL_EXTRA)), np.uint8),
    }
    made["coarse"][-1, : LANES * first] = MOST + 1
    exact, norms = np.empty((4, V), np.float32), np.empty((4, V), np.float32)
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
        kinds = HEAD_SCALE, FIRST_SCALE, MIDDLE_SCALE, LAST_SCALE
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
    for kind, each in zip((TAIL_LENGTH, FIRST_NORM, MIDDLE_NORM, LAST_NORM), norms, strict=True):
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
