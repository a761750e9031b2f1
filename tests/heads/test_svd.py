"""SVD-softmax: the preview selects, exact logits decide."""

import numpy as np
import pytest

from logitsieve.heads import ExactHead, SvdHead
from logitsieve.index_builder.fit.svd import preview_arrays
from tests.refusals import refused
from tests.synthetic import make_hidden, make_softmax

SOFTMAX = make_softmax()
HIDDEN = make_hidden(70)
EXACT = ExactHead(SOFTMAX)
ARRAYS = preview_arrays(SOFTMAX, SOFTMAX.dim)


def make_svd(arrays: dict[str, np.ndarray] = ARRAYS, **knobs: float) -> SvdHead:
    return SvdHead.from_arrays(SOFTMAX, arrays, fallback=EXACT, threads=1, knobs=knobs)


def test_every_candidate_at_full_width_is_the_exact_answer() -> None:
    top, expected = make_svd(width=24, candidates=300).topk(HIDDEN, 40), EXACT.topk(HIDDEN, 40)
    np.testing.assert_array_equal(top.ids, expected.ids)
    np.testing.assert_array_equal(top.logits, expected.logits)
    assert not top.exact.any()
    assert (top.scanned == 300).all()
    top = make_svd(width=24, candidates=6).topk(HIDDEN, 5)
    np.testing.assert_array_equal(top.ids, EXACT.topk(HIDDEN, 5).ids)
    assert make_svd(width=999, candidates=999).knobs == {"width": 24, "candidates": 300}
    top = make_svd(candidates=9).topk(HIDDEN, 10)
    assert top.exact.all()
    assert (top.scanned == 300).all()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("basis", ARRAYS["basis"][:, :20].copy()),
        ("basis", ARRAYS["basis"][:20].copy()),
        ("basis", ARRAYS["basis"].astype(np.float64)),
        ("basis", np.asfortranarray(ARRAYS["basis"])),
        ("preview", ARRAYS["preview"][:-1].copy()),
        ("preview", ARRAYS["preview"][:, :, :8].copy()),
        ("preview", ARRAYS["preview"].reshape(-1, 24)),
    ],
)
def test_arrays_that_the_kernel_would_misread_are_refused(name: str, value: np.ndarray) -> None:
    with refused("arrays"):
        make_svd({**ARRAYS, name: value})
