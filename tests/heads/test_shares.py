from functools import partial
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.heads.sketch import GRADES
from logitsieve.kernels.topk.descriptor import shares_of
from tests.oracle import best, logits64
from tests.synthetic import make_head, make_hidden, make_softmax

SMALL, LARGE = make_softmax(5000, 48), make_softmax(40_000, 64)  # LARGE: 10 MB, five shares


@pytest.mark.parametrize("count", [1, 2, 3, 7])
@pytest.mark.parametrize(
    "make",
    [partial(make_head, "exact"), *(partial(make_head, "sketch", max_error=g) for g in GRADES)],
)
def test_the_best_of_all_shares_are_the_best_of_all_rows(make: Any, count: int) -> None:
    head, hidden, k = make(SMALL), make_hidden(4, 48), 5
    found = []
    for share in shares_of(head._descriptor, count):
        ids, logits = np.empty((4, k), np.int32), np.empty((4, k), np.float32)
        scanned = np.empty(4, np.int32)
        assert head._kernel(share.ctypes.data, hidden, ids, logits, scanned, 0, 4) == 0
        assert (scanned > 0).all()
        found.append(ids)
    exact = logits64(SMALL.weight, SMALL.bias, hidden)
    chosen = np.full_like(exact, -np.inf)
    several = np.concatenate(found, axis=1)
    np.put_along_axis(chosen, several, np.take_along_axis(exact, several, 1), 1)
    np.testing.assert_array_equal(best(chosen, k), best(exact, k))


@pytest.mark.parametrize(("rows", "k"), [(1, 1), (5, 7), (31, 3), (40, 3), (1, 40_000)])
def test_answers_do_not_depend_on_the_number_of_threads(rows: int, k: int) -> None:
    hidden = make_hidden(rows, 64)
    alone = make_head("exact", LARGE).topk(hidden, k)
    for threads in (2, 3):
        np.testing.assert_equal(make_head("exact", LARGE, threads).topk(hidden, k), alone)


def test_a_row_that_is_not_finite_is_refused_by_its_number() -> None:
    hidden = make_hidden(3, 64)
    hidden[2, 5] = np.nan
    with pytest.raises(InvalidRequest, match=r"hidden\[2\]"):
        make_head("exact", LARGE, 2).topk(hidden, 1)
