"""Routing by int8: the route is that of the exact dots."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitsieve.heads import ScreenHead, Softmax
from logitsieve.kernels.screen.route import CODES, LARGEST_DIM, encode_centroids
from tests.oracle import dot64
from tests.synthetic import make_head, make_softmax, screen_arrays


@given(
    clusters=st.integers(1, 70),
    dim=st.integers(1, 70),
    centroid_exponent=st.integers(-100, 60),
    hidden_exponent=st.integers(-120, 60),
    probes=st.integers(1, 5),
    seed=st.integers(0, 1000),
)
def test_the_route_is_that_of_the_exact_dots(
    clusters: int, dim: int, centroid_exponent: int, hidden_exponent: int, probes: int, seed: int
) -> None:
    """Cluster c lists row c alone, so that the candidates name the route."""
    random = np.random.default_rng(seed)
    centroids = random.standard_normal((clusters, dim)) * 2.0**centroid_exponent
    centroids[: clusters // 2] = centroids[-1]  # ties
    softmax = Softmax(np.ones((clusters, dim), np.float32), np.zeros(clusters, np.float32))
    arrays = {
        "centroids": centroids.astype(np.float32),
        "offsets": np.arange(clusters + 1, dtype=np.int32),
        "ids": np.arange(clusters, dtype=np.int32),
    }
    exact = make_head("exact", softmax)
    head = ScreenHead.from_arrays(
        softmax, arrays, fallback=exact, threads=1, knobs={"probes": probes}
    )
    hidden = (random.standard_normal((6, dim)) * 2.0**hidden_exponent).astype(np.float32)
    for _ in range(2):
        assert_routed(head, hidden, arrays["centroids"], probes)
        without_codes(head)


def without_codes(head: ScreenHead) -> None:
    """From now on route by float32, as a screen whose centroids have biases does."""
    head._descriptor[CODES] = 0


def assert_routed(head: ScreenHead, hidden: np.ndarray, centroids: np.ndarray, probes: int) -> None:
    """Over lists that hold their own cluster's number alone."""
    found = head.candidates(hidden, 1)
    for row in range(len(hidden)):
        order = np.argsort(-dot64(centroids, hidden[row]), kind="stable")[:probes]
        ids = found.ids[found.offsets[row] : found.offsets[row + 1]]
        assert sorted(ids.tolist()) == sorted(order.tolist())


def test_centroids_whose_float32_dots_overflow_are_routed_by_the_exact_ones() -> None:
    """Partial sums pass 3.4e38, the dots themselves do not."""
    centroids = np.array([[-1, 0], [-3.5, 3.39]], np.float32)
    hidden = np.full((5, 2), 1e38, np.float32)
    softmax = Softmax(np.full((2, 2), 0.1, np.float32), np.zeros(2, np.float32))
    arrays = {
        "centroids": centroids,
        "offsets": np.arange(3, dtype=np.int32),
        "ids": np.arange(2, dtype=np.int32),
    }
    exact = make_head("exact", softmax)
    head = ScreenHead.from_arrays(softmax, arrays, fallback=exact, threads=1, knobs={})
    for _ in range(2):
        assert_routed(head, hidden, centroids, 1)
        without_codes(head)


def test_codes_are_within_the_error_that_is_claimed() -> None:
    centroids = np.random.default_rng(0).standard_normal((21, 37)).astype(np.float32)
    codes, scales, error = encode_centroids(centroids)
    assert codes.shape == (2, 12, 16, 4)
    rows = codes.transpose(0, 2, 1, 3).reshape(32, 48)[:21, :37].astype(np.float64) - 128
    rest = centroids - rows * scales[:21, None].astype(np.float64)
    assert np.linalg.norm(rest, axis=1).max() <= error
    assert error < 0.02 * np.linalg.norm(centroids, axis=1).max()


def test_hidden_sizes_whose_sums_would_overflow_are_routed_without_codes() -> None:
    softmax = make_softmax(20, LARGEST_DIM + 1)
    hidden = np.ones((2, LARGEST_DIM + 1), np.float32)
    arrays = screen_arrays(softmax)
    top = make_head("screen", softmax).topk(hidden, 3)
    cluster = int(dot64(arrays["centroids"], hidden[0]).argmax())
    listed = np.sort(arrays["ids"][arrays["offsets"][cluster] : arrays["offsets"][cluster + 1]])
    logits = dot64(softmax.weight[listed], hidden[0]) + softmax.bias[listed]
    assert (top.ids == listed[np.argsort(-logits, kind="stable")[:3]]).all()


@pytest.mark.parametrize("scale", [1e-38, 1e-31, 1e-29, 1e29, 1e31])
def test_magnitudes_at_the_ends_of_what_codes_can_hold(scale: float) -> None:
    softmax = make_softmax(40, 20, scale=1e-3)
    hidden = (np.random.default_rng(1).standard_normal((9, 20)) * scale).astype(np.float32)
    arrays = screen_arrays(softmax)
    found = make_head("screen", softmax).candidates(hidden, 1)
    for row in range(9):
        cluster = int(dot64(arrays["centroids"], hidden[row]).argmax())
        listed = arrays["ids"][arrays["offsets"][cluster] : arrays["offsets"][cluster + 1]]
        np.testing.assert_array_equal(
            found.ids[found.offsets[row] : found.offsets[row + 1]], listed
        )
