import numpy as np

from logitsieve.kernels.screen.route import LARGEST_DIM
from tests.oracle import dot64
from tests.synthetic import make_head, make_softmax, screen_arrays
from tools.attacks import routes


def test_centroids_whose_float32_dots_overflow_are_routed_by_the_exact_ones() -> None:
    """Partial sums pass 3.4e38, the dots themselves do not; with codes and without."""
    centroids = np.array([[-1, 0], [-3.5, 3.39]], np.float32)
    with np.errstate(over="ignore"):
        assert routes.judged(centroids, np.full((5, 2), 1e38, np.float32), 1).wrong == 0


def test_hidden_sizes_whose_sums_would_overflow_are_routed_without_codes() -> None:
    softmax = make_softmax(20, LARGEST_DIM + 1)
    hidden_states = np.ones((2, LARGEST_DIM + 1), np.float32)
    arrays = screen_arrays(softmax)
    top = make_head("screen", softmax).topk(hidden_states, 3)
    cluster = int(dot64(arrays["centroids"], hidden_states[0]).argmax())
    listed = np.sort(arrays["ids"][arrays["offsets"][cluster] : arrays["offsets"][cluster + 1]])
    logits = dot64(softmax.weight[listed], hidden_states[0]) + softmax.bias[listed]
    assert (top.ids == listed[np.argsort(-logits, kind="stable")[:3]]).all()
