from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from logitsieve.heads import Softmax
from logitsieve.index_builder.fit.rotated_rows import (
    BLOCK_ROWS,
    Turning,
    factored,
    turn,
    turn_block,
)
from logitsieve.index_builder.workers import Workers
from tests.index_builder.building import Watched
from tests.synthetic import make_hidden, make_softmax, rotated


def softmax_and_turning() -> tuple[Softmax, Turning]:
    softmax = make_softmax(vocab_size=2 * BLOCK_ROWS + 90, dim=24)
    return softmax, factored(*rotated(softmax, make_hidden(300), 9))


def test_workers_give_the_same_bits() -> None:
    softmax, turning = softmax_and_turning()
    alone = turn(softmax, turning)
    with ThreadPoolExecutor(3) as pool:
        many = turn(softmax, turning, Workers(pool))
    np.testing.assert_array_equal(many.rows, alone.rows)
    np.testing.assert_array_equal(many.outside, alone.outside)
    assert (many.left, many.sha256) == (alone.left, alone.sha256)
    assert alone.sha256 == softmax.sha256


def test_rows_and_their_rest_are_the_matrix() -> None:
    softmax, turning = softmax_and_turning()
    turned = turn(softmax, turning)
    basis = turning.triangle.astype(np.float64) @ turning.directions.astype(np.float64)
    rest = (softmax.weight - turned.rows.astype(np.float64) @ basis) / turning.stretch
    norms = np.linalg.norm(rest, axis=1)
    assert (norms <= turned.outside).all()
    np.testing.assert_allclose(norms, turned.outside, rtol=1e-6)


def test_a_matrix_that_changes_meanwhile_has_no_hash() -> None:
    """Neither that of the rows that were turned, nor that of those that were hashed, is right."""
    softmax, turning = softmax_and_turning()
    weight = softmax.weight.copy()

    def change(call: Any) -> None:
        assert call is turn_block
        weight[5, 3] += 1

    with Watched(change) as pool:
        assert turn(Softmax(weight, softmax.bias), turning, Workers(pool)).sha256 == ""
