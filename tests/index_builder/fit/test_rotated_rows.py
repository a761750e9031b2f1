from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from logitsieve.heads import Softmax
from logitsieve.index_builder.fit.sketch import BLOCK_ROWS, rotate, rounded, turn_block
from logitsieve.index_builder.workers import Workers
from tests.index_builder.building import Watched
from tests.synthetic import make_hidden, make_softmax, rotated


def softmax_and_directions() -> tuple[Softmax, np.ndarray]:
    softmax = make_softmax(vocab_size=2 * BLOCK_ROWS + 90, dim=24)
    return softmax, rounded(rotated(softmax, make_hidden(300)))


def test_workers_give_the_same_bits() -> None:
    softmax, directions = softmax_and_directions()
    alone = rotate(softmax, directions)
    with ThreadPoolExecutor(3) as pool:
        many = rotate(softmax, directions, Workers(pool))
    np.testing.assert_array_equal(many.rows, alone.rows)
    assert (many.left, many.sha256) == (alone.left, alone.sha256)
    assert alone.sha256 == softmax.sha256


def test_rows_and_their_rest_are_the_matrix() -> None:
    softmax, directions = softmax_and_directions()
    turned = rotate(softmax, directions)
    rest = softmax.weight - turned.rows.astype(np.float64) @ directions.astype(np.float64)
    longest = np.linalg.norm(rest, axis=1).max()
    assert longest <= turned.left <= 1e-6 * np.linalg.norm(softmax.weight, axis=1).max()


def test_directions_are_scaled_so_that_float16_keeps_most_of_each() -> None:
    basis = np.random.default_rng(0).standard_normal((24, 24)) * 1e-9
    directions = rounded(basis).astype(np.float64)
    assert 1 <= np.abs(directions).max() <= 2
    scale = np.abs(directions).max() / np.abs(basis).max()
    np.testing.assert_allclose(directions, basis * scale, rtol=2.0**-10, atol=2.0**-24)


def test_a_matrix_that_changes_meanwhile_has_no_hash() -> None:
    """Neither that of the rows that were turned, nor that of those that were hashed, is right."""
    softmax, directions = softmax_and_directions()
    weight = softmax.weight.copy()

    def change(call: Any) -> None:
        assert call is turn_block
        weight[5, 3] += 1

    with Watched(change) as pool:
        assert rotate(Softmax(weight, softmax.bias), directions, Workers(pool)).sha256 == ""
