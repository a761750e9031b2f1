import numpy as np
import pytest

from logitsieve.heads import Head
from tests.oracle import dot64
from tests.refusals import refused
from tests.synthetic import ivf_arrays, make_head, make_hidden, make_softmax

SOFTMAX = make_softmax()
HIDDEN = make_hidden(70)
ARRAYS = ivf_arrays(SOFTMAX)


def make_ivf(nprobe: int, arrays: dict[str, np.ndarray] = ARRAYS) -> Head:
    return make_head("ivf", SOFTMAX, arrays=arrays, nprobe=nprobe)


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


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ids", np.zeros(300, np.int32)),
        ("offsets", np.where(np.arange(11) == 4, ARRAYS["offsets"][3], ARRAYS["offsets"])),
    ],
)
def test_lists_that_leave_out_rows_or_hold_none_are_refused(name: str, value: np.ndarray) -> None:
    with refused("arrays"):
        make_ivf(2, {**ARRAYS, name: value})
