from functools import partial

import numpy as np

from logitsieve.heads import ExactHead
from logitsieve.index_builder.fit.svd import preview_arrays
from tests.synthetic import make_head, make_hidden, make_softmax

SOFTMAX = make_softmax()
HIDDEN = make_hidden(70)
EXACT = ExactHead(SOFTMAX)
ARRAYS = preview_arrays(SOFTMAX, SOFTMAX.dim)


make_svd = partial(make_head, "svd", SOFTMAX, arrays=ARRAYS)


def test_every_candidate_at_full_width_is_the_exact_answer() -> None:
    top = make_svd(width=24, candidates=300).topk(HIDDEN, 40)
    np.testing.assert_equal(top[:2], EXACT.topk(HIDDEN, 40)[:2])
    assert not top.exact.any()
    assert (top.scanned == 300).all()
    top = make_svd(width=24, candidates=6).topk(HIDDEN, 5)
    np.testing.assert_array_equal(top.ids, EXACT.topk(HIDDEN, 5).ids)
    assert make_svd(width=999, candidates=999).knobs == {"width": 24, "candidates": 300}
    top = make_svd(candidates=9).topk(HIDDEN, 10)
    assert top.exact.all()
    assert (top.scanned == 300).all()
