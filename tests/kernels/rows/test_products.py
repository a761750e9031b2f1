from functools import partial

import numpy as np
import pytest

from logitsieve.kernels.compile import kernel
from logitsieve.kernels.rows.functions import (
    CODED_DOTS,
    CODED_FEW,
    addresses,
    call_coded_dots,
    call_few,
)
from logitsieve.kernels.rows.products import code_header, codes_size, encode_words, sums_of_pairs
from logitsieve.kernels.simd.planes import LARGEST_CODE
from logitsieve.kernels.simd.pointers import int64_pointer, pointer, shift
from logitsieve.kernels.topk.descriptor import coded_slack_at, matrix_descriptor
from logitsieve.kernels.topk.exact_topk import dense_topk
from logitsieve.kernels.topk.scan import FEW_CODED, FEW_COSTLY
from logitsieve.utils.stored import KINDS, StoredMatrix
from tests.kernels.assembly import called, instructions, vector
from tests.oracle import best, logits64
from tests.stored import BLOCKS, random_blocks, reference, stored_softmax

EVERY_BLOCK = pytest.mark.parametrize("kind", BLOCKS)
D = 512
COUNTS = (1, 2, 4, FEW_COSTLY - 1, FEW_COSTLY + 1, FEW_CODED, FEW_CODED + 1)


@kernel("(float32[:,::1], float32[:,::1], float64[::1])")
def encode(hidden_states, codes, squares):
    for q in range(hidden_states.shape[0]):
        squares[q] = encode_words(
            pointer(hidden_states[q]), hidden_states.shape[1], pointer(codes[q])
        )


@kernel("(int64, uint8[:,::1], float32[:,::1], float32[:,:,::1], int64)")
def dots_of(address, stored, codes, found, dim):
    """Fill found [3, 4, V]: of four queries, each alone, and of two and two."""
    functions, each = int64_pointer(address), codes.shape[1]
    rows, start, sums = stored.shape[0], pointer(codes), np.empty(4, np.float32)
    bias = np.zeros(rows, np.float32)
    for place, first, count in ((0, 0, 4), (2, 0, 2), (2, 2, 2)):
        call_few(
            functions[CODED_FEW], pointer(stored), rows, pointer(bias), shift(start, first * each),
            each, 2 * each, 3 * each, count, dim, pointer(found[place, first]), rows,
        )  # fmt: skip
    for row in range(0, rows, 4):
        i, j, k, m = row * dim, (row + 3) * dim, (row + 1) * dim, (row + 2) * dim
        for q in range(4):
            query = shift(start, q * each)
            call_coded_dots(
                functions[CODED_DOTS], pointer(stored), i, j, k, m, query, dim, pointer(sums)
            )
            found[1, q, row], found[1, q, row + 3] = sums[0], sums[1]
            found[1, q, row + 1], found[1, q, row + 2] = sums[2], sums[3]


@kernel("(int64, float64, float64)")
def slack_of(address, norm, off):
    return coded_slack_at(int64_pointer(address), 0, norm, off)


@kernel("(int64,)")
def room_of(dim):
    return 2 * codes_size(dim)


@kernel("(int64,)")
def header_of(dim):
    return code_header(dim)


def queries() -> np.ndarray:
    """Four hidden states: Gaussian, with an outlier, all but one zero, and of equal magnitudes."""
    random = np.random.default_rng(5)
    hidden_states = random.standard_normal((4, D)).astype(np.float32)
    hidden_states[1, 37] = 3000
    hidden_states[2, 1:] = 0
    hidden_states[3] = np.sign(hidden_states[3])
    return hidden_states


def encoded(hidden_states: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    codes, squares = (
        np.zeros((len(hidden_states), room_of(D)), np.float32),
        np.empty(len(hidden_states)),
    )
    encode(hidden_states, codes, squares)
    return codes, squares


def words_of(codes: np.ndarray) -> np.ndarray:
    return codes[:, header_of(D) :].copy().view(np.int16)[:, :D]


def test_a_query_is_its_scale_times_its_codes() -> None:
    hidden_states = queries()
    codes, squares = encoded(hidden_states)
    words = words_of(codes).astype(np.float64)
    assert np.abs(words).max() <= LARGEST_CODE
    assert (np.abs(words).max(axis=1) >= LARGEST_CODE - 1).all()
    approximated = words * codes[:, :1].astype(np.float64)
    np.testing.assert_allclose(
        squares, ((hidden_states - approximated) ** 2).sum(axis=1), rtol=1e-12
    )
    sums = words.reshape(4, -1, 32).sum(axis=2)
    np.testing.assert_array_equal(8 * codes[:, 1 : 1 + D // 32], sums)


@pytest.mark.parametrize("value", [0.0, 1e-38, 1e-31, 2e30, 3e38])
def test_a_query_too_small_or_too_large_has_codes_of_zero(value: float) -> None:
    hidden_states = np.full((1, D), value, np.float32)
    codes, squares = encoded(hidden_states)
    assert not codes[0, : header_of(D)].any()
    assert not words_of(codes).any()
    np.testing.assert_allclose(squares, (hidden_states.astype(np.float64) ** 2).sum())


def found_of(matrix: StoredMatrix, codes: np.ndarray) -> np.ndarray:
    found = np.empty((3, 4, len(matrix)), np.float32)
    address = addresses(matrix.kind).ctypes.data
    dots_of(address, matrix.data, codes, found, matrix.dim)
    return found


@EVERY_BLOCK
def test_dots_of_codes_are_within_the_slack_of_the_exact_ones(kind: str) -> None:
    spread = 10.0 ** np.random.default_rng(0).integers(-4, 3, (192, D // KINDS[kind].values))
    matrix, hidden_states = random_blocks(kind, spread), queries()
    codes, squares = encoded(hidden_states)
    descriptor = matrix_descriptor(matrix, np.zeros(192, np.float32))
    exact = hidden_states.astype(np.float64) @ reference(matrix).astype(np.float64).T
    found = found_of(matrix, codes)
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(found[0], found[2])
    norms = np.linalg.norm(hidden_states.astype(np.float64), axis=1)
    for q in range(4):
        slack = slack_of(descriptor.ctypes.data, norms[q], np.sqrt(squares[q]))
        assert np.abs(found[0, q] - exact[q]).max() <= slack


def test_sums_of_the_largest_codes_are_exact() -> None:
    """Four products of a lane, and all 32 of a block, just fit."""
    data = np.full((4, D // 32, 34), 0x80, np.uint8)  # codes of -128
    data[:, :, :2] = np.frombuffer(np.float16(1).tobytes(), np.uint8)
    matrix = StoredMatrix("Q8_0", data.reshape(4, -1))
    codes, _ = encoded(np.ones((4, D), np.float32))
    words = words_of(codes)
    assert (words == words[0, 0]).all()
    expected = codes[:, 0] * np.float32(-128 * D * int(words[0, 0]))
    np.testing.assert_array_equal(found_of(matrix, codes)[0], np.tile(expected[:, None], 4))


@EVERY_BLOCK
def test_what_is_chosen_by_codes_is_the_exact_answer(kind: str) -> None:
    softmax = stored_softmax(kind, 700, D)
    data = softmax.stored.copy()
    data[400:420] = data[11]  # ties
    matrix, bias = StoredMatrix(kind, data), softmax.bias.copy()
    bias[400:420] = bias[11]
    weight, most = reference(matrix), max(COUNTS)
    hidden_states = np.random.default_rng(0).standard_normal((most, D)).astype(np.float32)
    hidden_states[0] = 3 * weight[11]  # so that the tied rows are the best
    hidden_states[1] = 0
    hidden_states[2] *= 1e-33
    hidden_states[3, 5] = 1e4
    descriptor, true = matrix_descriptor(matrix, bias), logits64(weight, bias, hidden_states)
    expected = best(true, 25)
    best_logits = np.take_along_axis(true, expected.astype(int), 1).astype(np.float32)
    for count in COUNTS:
        ids, logits = np.empty((count, 25), np.int32), np.empty((count, 25), np.float32)
        given, scanned = hidden_states[:count], np.empty(count, np.int32)
        assert dense_topk(descriptor.ctypes.data, given, ids, logits, scanned, 0, count) == 0
        np.testing.assert_array_equal(ids, expected[:count], f"{count} rows")
        np.testing.assert_array_equal(logits, best_logits[:count], f"{count} rows")


of_neighbours, of_others = (
    called(vector(16, 16), vector(32, 8), partial(sums_of_pairs, neighbours=each))
    for each in (True, False)
)


@kernel("(int16[::1], int16[::1], int32[:,::1])")
def pairs(left, right, sums):
    of_neighbours(pointer(left), pointer(right), pointer(sums[0]))
    of_others(pointer(left), pointer(right), pointer(sums[1]))


def test_products_are_added_in_pairs_on_every_target() -> None:
    left, right = np.random.default_rng(0).integers(-16256, 16257, (2, 16)).astype(np.int16)
    sums, products = np.empty((2, 8), np.int32), left.astype(np.int32) * right
    pairs(left, right, sums)
    np.testing.assert_array_equal(sums[0], products[::2] + products[1::2])
    np.testing.assert_array_equal(sums[1], products[:8] + products[8:])


CPUS = [
    ("x86_64", "znver3", "vpmaddwd", "ymm"),
    ("x86_64", "icelake-server", "vpmaddwd", "ymm"),
    ("x86_64", "x86-64-v2", "pmaddwd", "xmm"),
    ("aarch64", "neoverse-n1", "smlal2", "v"),
]


@pytest.mark.parametrize(("architecture", "cpu", "instruction", "register"), CPUS)
def test_products_are_added_in_pairs_by_one_instruction(
    architecture: str, cpu: str, instruction: str, register: str
) -> None:
    triple, operands = f"{architecture}-unknown-linux-gnu", [vector(16, 16)] * 2
    build = partial(sums_of_pairs, neighbours=architecture == "x86_64")
    lines = instructions(triple, cpu, operands, vector(32, 8), build)
    assert any(instruction in line and register in line for line in lines)
