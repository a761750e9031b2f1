import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.heads import Head
from tests.oracle import best, logits64
from tests.synthetic import frequency_arrays, make_head, make_hidden, make_softmax

SOFTMAX = make_softmax()
HIDDEN = make_hidden(70)
IDS = frequency_arrays(SOFTMAX)["ids"]


def make_frequency(n: int, ids: np.ndarray = IDS) -> Head:
    return make_head("frequency", SOFTMAX, arrays={"ids": ids}, n=n)


@pytest.mark.parametrize("n", [5, 64, 299])
def test_the_answer_is_the_best_of_the_first_n(n: int) -> None:
    top = make_frequency(n).topk(HIDDEN, 5)
    listed = np.sort(IDS[:n])
    true = logits64(SOFTMAX.weight, SOFTMAX.bias, HIDDEN)[:, listed]
    np.testing.assert_array_equal(top.ids, listed[best(true, 5)])
    assert (top.scanned == n).all()
    assert not top.proven.any()


def test_an_id_twice_is_refused() -> None:
    twice = IDS.copy()
    twice[3] = twice[9]
    with pytest.raises(InvalidRequest, match=f"{twice[9]} is there twice"):
        make_frequency(9, twice)
