"""Inverted lists: routing by centroid and bias, every row in one list."""

import numpy as np
import pytest

from logitsieve.heads import ExactHead, IvfHead
from tests.oracle import dot64
from tests.refusals import refused
from tests.synthetic import ivf_arrays, make_hidden, make_softmax

SOFTMAX = make_softmax()
HIDDEN = make_hidden(70)
EXACT = ExactHead(SOFTMAX)
ARRAYS = ivf_arrays(SOFTMAX)


def make_ivf(nprobe: int, arrays: dict[str, np.ndarray] = ARRAYS) -> IvfHead:
    knobs = {"nprobe": nprobe}
    return IvfHead.from_arrays(SOFTMAX, arrays, fallback=EXACT, threads=1, knobs=knobs)


@pytest.mark.parametrize("nprobe", [1, 3])
def test_clusters_are_ranked_with_their_bias(nprobe: int) -> None:
    biases = (np.arange(10) % 4).astype(np.float32) * 3
    found = make_ivf(nprobe, {**ARRAYS, "biases": biases}).candidates(HIDDEN, 1)
    offsets, ids = ARRAYS["offsets"], ARRAYS["ids"]
    for row in range(len(HIDDEN)):
        scores = dot64(ARRAYS["centroids"], HIDDEN[row]) + biases
        probed = np.argsort(-scores, kind="stable")[:nprobe]
        listed = np.concatenate([ids[offsets[c] : offsets[c + 1]] for c in probed])
        mine = found.ids[found.offsets[row] : found.offsets[row + 1]]
        np.testing.assert_array_equal(np.sort(mine), np.sort(listed))


def test_every_list_is_the_exact_answer() -> None:
    head = make_ivf(999)
    assert head.knobs == {"nprobe": 10}
    top, expected = head.topk(HIDDEN, 300), EXACT.topk(HIDDEN, 300)
    np.testing.assert_array_equal(top.ids, expected.ids)
    np.testing.assert_array_equal(top.logits, expected.logits)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("biases", ARRAYS["biases"][:-1].copy()),
        ("biases", ARRAYS["biases"].astype(np.float64)),
        ("centroids", ARRAYS["centroids"][:, :5].copy()),
        ("offsets", ARRAYS["offsets"][::-1].copy()),
        ("ids", ARRAYS["ids"] + np.int32(1)),
        ("ids", np.zeros(300, np.int32)),
        ("offsets", np.where(np.arange(11) == 4, ARRAYS["offsets"][3], ARRAYS["offsets"])),
    ],
)
def test_arrays_that_a_kernel_could_not_follow_are_refused(name: str, value: np.ndarray) -> None:
    with refused("arrays"):
        make_ivf(2, {**ARRAYS, name: value})
