"""Rows of hidden of several blocks share scratch: each row's draws are its own."""

from __future__ import annotations

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.heads._base.draw_options import DrawOptions
from logitsieve.heads.exact import ExactHead
from logitsieve.kernels.topk.queries import AT_ONCE
from tests.synthetic import make_hidden, make_softmax

ROWS = 2 * AT_ONCE + 5
HIDDEN, SEEDS = make_hidden(ROWS), np.arange(ROWS, dtype=np.uint64)


@pytest.mark.parametrize("size", [1, 16, 300])
def test_a_row_alone_draws_what_it_draws_among_others(size: int) -> None:
    head = ExactHead(make_softmax(size))
    ids, log_z, _ = head.draw(HIDDEN, DrawOptions(3, SEEDS))
    for row in (0, AT_ONCE - 1, AT_ONCE, ROWS - 1):
        one = slice(row, row + 1)
        alone = head.draw(HIDDEN[one].copy(), DrawOptions(3, SEEDS[one]))
        np.testing.assert_array_equal(alone[0], ids[one])
        np.testing.assert_array_equal(alone[1], log_z[one])


@pytest.mark.parametrize("row", [0, AT_ONCE - 1, AT_ONCE + 3])
def test_the_first_row_that_cannot_be_answered_is_named(row: int) -> None:
    hidden = HIDDEN.copy()
    hidden[[row, row + 1]] = np.nan
    with pytest.raises(InvalidRequest, match=rf"hidden\[{row}\]"):
        ExactHead(make_softmax()).draw(hidden, DrawOptions(1, SEEDS))
