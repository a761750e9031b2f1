import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.heads import HEADS, FullHead, Head, make_heads
from tests.oracle import best, dot64, logits64
from tests.synthetic import (
    decaying,
    make_head,
    make_hidden,
    make_softmax,
    screen_arrays,
    svd_arrays,
    usual_sketch,
)

SOFTMAX = make_softmax()
HIDDEN = make_hidden(70)
ARRAYS = screen_arrays(SOFTMAX)


def make_screen(arrays: dict[str, np.ndarray], probes: int = 1) -> Head:
    return make_head("screen", SOFTMAX, arrays=arrays, probes=probes)


def lists_of(row: np.ndarray, probes: int) -> np.ndarray:
    """The union of the lists of the best clusters, by the oracle's routing."""
    order = np.argsort(-dot64(ARRAYS["centroids"], row), kind="stable")[:probes]
    offsets, ids = ARRAYS["offsets"], ARRAYS["ids"]
    return np.unique(np.concatenate([ids[offsets[c] : offsets[c + 1]] for c in order]))


def test_the_answer_is_the_best_of_the_probed_lists() -> None:
    true = logits64(SOFTMAX.weight, SOFTMAX.bias, HIDDEN)
    for probes in (1, 2, 6):
        top = make_screen(ARRAYS, probes).topk(HIDDEN, 5)
        for row in range(len(HIDDEN)):
            listed = lists_of(HIDDEN[row], probes)
            expected = listed[best(true[row][None, listed], 5)[0]]
            np.testing.assert_array_equal(top.ids[row], expected)


@pytest.mark.parametrize("probes", [1, 2])
def test_rows_with_too_few_candidates_are_answered_by_the_fallback(probes: int) -> None:
    """Ids of several lists count once."""
    sizes = np.array([len(lists_of(row, probes)) for row in HIDDEN])
    k = int(np.median(sizes))
    top, short = make_screen(ARRAYS, probes).topk(HIDDEN, k), sizes < k
    assert 0 < short.sum() < len(HIDDEN)
    np.testing.assert_array_equal(top.proven, short)
    np.testing.assert_array_equal(top.scanned[short], SOFTMAX.vocab_size)
    assert (top.scanned >= sizes).all()
    assert probes > 1 or (top.scanned == sizes)[~short].all()
    true = best(logits64(SOFTMAX.weight, SOFTMAX.bias, HIDDEN), k)
    np.testing.assert_array_equal(top.ids[short], true[short])


def cosines() -> np.ndarray:
    """[B] of each context to its best centroid."""
    centroids = ARRAYS["centroids"].astype(np.float64)
    dots = HIDDEN.astype(np.float64) @ centroids.T
    best_B = dots.argmax(axis=1)
    lengths = np.linalg.norm(HIDDEN, axis=1) * np.linalg.norm(centroids, axis=1)[best_B]
    return np.asarray(dots.max(axis=1) / lengths)


@pytest.mark.parametrize("probes", [1, 2])
@pytest.mark.parametrize("threads", [1, 2])
def test_rows_far_from_centroids_go_to_the_fallback(probes: int, threads: int) -> None:
    least = float(np.median(cosines()))
    head = make_head("screen", SOFTMAX, threads=threads, probes=probes, escalate=least)
    top, near = head.topk(HIDDEN, 5), make_head("screen", SOFTMAX, probes=probes).topk(HIDDEN, 5)
    far = cosines() < least
    assert 0 < far.sum() < len(HIDDEN)
    np.testing.assert_array_equal(top.proven, far)
    np.testing.assert_array_equal(top.ids[far], FullHead(SOFTMAX).topk(HIDDEN, 5).ids[far])
    np.testing.assert_array_equal(top.ids[~far], near.ids[~far])
    found = head.candidates(HIDDEN, 5)
    assert (np.diff(found.offsets)[far] == SOFTMAX.vocab_size).all()
    for row in range(10):
        np.testing.assert_array_equal(head.topk(HIDDEN[row], 5).ids[0], top.ids[row])


def test_each_cluster_may_have_a_threshold_of_its_own() -> None:
    """Reaches are factors: two clusters keep all of their rows, one loses all, the others some."""
    reaches = np.array([1e-3, 1.0, 1e3, 1.0, 1e-3, 1.0], np.float32)
    cosine_B = cosines()
    routed_B = np.array([dot64(ARRAYS["centroids"], row).argmax() for row in HIDDEN])
    escalate = float(np.quantile(cosine_B, 0.5))
    top = make_screen({**ARRAYS, "reaches": reaches}).with_knobs(escalate=escalate).topk(HIDDEN, 5)
    np.testing.assert_array_equal(top.proven, cosine_B < escalate * reaches[routed_B])
    assert len(set(top.proven[reaches[routed_B] == 1])) == 2


@pytest.mark.parametrize(
    "wrong",
    [np.ones(5, np.float32), np.ones(6), np.zeros(6, np.float32), np.full(6, np.nan, np.float32)],
)
def test_reaches_that_no_builder_writes_are_refused(wrong: np.ndarray) -> None:
    with pytest.raises(InvalidRequest, match="reaches"):
        make_screen({**ARRAYS, "reaches": wrong})


@pytest.mark.parametrize(
    ("fallback", "all_rows"), [("", False), ("sketch", False), ("full", True), ("svd", False)]
)
def test_far_rows_go_to_a_named_fallback(fallback: str, all_rows: bool) -> None:
    softmax, hidden_states = decaying(2000, 96, rows=3)  # bounds leave few rows
    parts = {"screen": screen_arrays(softmax), "sketch": usual_sketch(softmax)}
    knobs = {"sketch": {"max_error": 0.0}, "screen": {"escalate": 1.0}}
    top = make_heads(HEADS, softmax, parts, knobs, 1, fallback)["screen"].topk(hidden_states, 5)
    assert top.proven.all()
    assert (top.scanned == 2000).all() == all_rows
    np.testing.assert_array_equal(top.ids, FullHead(softmax).topk(hidden_states, 5).ids)


def test_far_rows_may_go_to_previews_which_prove_nothing() -> None:
    softmax, hidden_states = decaying(2000, 96, rows=5)
    parts = {"screen": screen_arrays(softmax), "svd": svd_arrays(softmax)}
    knobs = {"svd": {"width": 4.0, "candidates": 64.0}, "screen": {"escalate": 1.0}}
    heads = make_heads(HEADS, softmax, parts, knobs, 1, "svd")
    assert list(heads) == ["full", "screen", "svd"]
    top, wanted = (heads[name].topk(hidden_states, 5) for name in ("screen", "svd"))
    np.testing.assert_array_equal(top.ids, wanted.ids)
    assert top.fallback.all()
    assert not top.proven.any()
    assert heads["screen"].fallback_max_error == 1.0
    few = heads["svd"].topk(hidden_states, 100)  # more than it looks at
    assert few.proven.all()


def graded(
    escalate: float = -1.0, max_error: float = 1e-3, fallback: str = "sketch"
) -> dict[str, Head]:
    """A sketch, and a screen that leaves rows to it."""
    parts = {"screen": ARRAYS, "sketch": usual_sketch(SOFTMAX)}
    knobs = {"sketch": {"max_error": max_error}, "screen": {"escalate": escalate}}
    return make_heads(HEADS, SOFTMAX, parts, knobs, 1, fallback)


@pytest.mark.parametrize("max_error", [1e-15, 1e-3])
def test_rows_that_a_grade_answers_are_marked_and_not_exact(max_error: float) -> None:
    escalate = float(np.quantile(cosines(), 0.4))
    heads = graded(escalate, max_error)
    top, far = heads["screen"].topk(HIDDEN, 5), cosines() < escalate
    np.testing.assert_array_equal(top.fallback, far)
    assert not top.proven.any()
    assert heads["screen"].fallback_max_error == heads["sketch"].max_error == max_error
    for mine, theirs in zip(top[:4], heads["sketch"].topk(HIDDEN[far], 5)[:4], strict=True):
        np.testing.assert_array_equal(mine[far], theirs)
    np.testing.assert_array_equal(top.ids[far], FullHead(SOFTMAX).topk(HIDDEN[far], 5).ids)
    listed = heads["screen"].candidates(HIDDEN, 5)
    assert np.isinf(listed.upper).all()


def test_short_lists_are_filled_by_a_grade_or_without_one() -> None:
    top = graded()["screen"].topk(HIDDEN, 100)
    assert top.fallback.all()
    assert not top.proven.any()
    for name, head in graded().items():
        assert (head.fallback_max_error > 0) == (name == "screen")


@pytest.mark.parametrize("fallback", ["screen", "svd", "nothing", ""])
def test_a_head_of_no_known_chance_is_no_fallback(fallback: str) -> None:
    """A manifest may name any: the last head of a known chance answers then."""
    heads = graded(1.0, fallback=fallback)
    assert heads["screen"].fallback_max_error == 1e-3
    assert heads["screen"].topk(HIDDEN, 5).fallback.all()


def outside_arrays(spread: float) -> dict[str, np.ndarray]:
    """The log of the mass outside each list, linearised at the cluster's centroid."""
    centroids, weight = ARRAYS["centroids"].astype(np.float64), SOFTMAX.weight.astype(np.float64)
    rows, biases = np.empty_like(centroids), np.empty(len(centroids))
    for cluster, centroid in enumerate(centroids):
        first, last = ARRAYS["offsets"][cluster : cluster + 2]
        outside = np.setdiff1d(np.arange(SOFTMAX.vocab_size), ARRAYS["ids"][first:last])
        masses = np.exp(weight[outside] @ centroid + SOFTMAX.bias[outside])
        rows[cluster] = masses @ weight[outside] / masses.sum()
        biases[cluster] = np.log(masses.sum()) - rows[cluster] @ centroid
    spreads = np.full(len(centroids), spread)
    named = {"outside_rows": rows, "outside_biases": biases, "outside_spreads": spreads}
    return ARRAYS | {name: values.astype(np.float32) for name, values in named.items()}


@pytest.mark.parametrize("rows", [1, 3, 70])
@pytest.mark.parametrize("probes", [1, 3])
def test_log_z_is_the_best_lists_sum_and_the_estimate_of_all_others(probes: int, rows: int) -> None:
    arrays, k = outside_arrays(0.5), 3
    head, hidden_states = make_screen(arrays, probes).with_knobs(log_z_error=1), HIDDEN[:rows]
    found, top = head.best_with_log_z(hidden_states, k), head.topk(hidden_states, k)
    np.testing.assert_array_equal(found.ids, top.ids)
    np.testing.assert_array_equal(found.logits.astype(np.float32), top.logits)
    np.testing.assert_array_equal(found.scanned, top.scanned)
    true = logits64(SOFTMAX.weight, SOFTMAX.bias, hidden_states)
    np.testing.assert_array_equal(found.logits, np.take_along_axis(true, found.ids, axis=1))
    own = np.flatnonzero(~found.fallback)
    assert own.size
    for row in own:
        cluster = int(np.argmax(dot64(ARRAYS["centroids"], hidden_states[row])))
        inside = np.exp(true[row, lists_of(hidden_states[row], 1)]).sum()
        rest = np.exp(
            arrays["outside_rows"][cluster].astype(np.float64) @ hidden_states[row]
            + arrays["outside_biases"][cluster]
        )
        np.testing.assert_allclose(found.log_z[row, 1], np.log(inside + rest), atol=1e-5)
        np.testing.assert_allclose(found.errors[row], 0.5 * rest / (inside + rest), rtol=1e-4)
    assert not found.proven[own].any()


def test_rows_with_a_larger_error_of_log_z_go_to_the_fallback() -> None:
    every = make_screen(outside_arrays(0.5)).with_knobs(log_z_error=1).best_with_log_z(HIDDEN, 2)
    most = float(np.median(every.errors))
    head = make_screen(outside_arrays(0.5)).with_knobs(log_z_error=most)
    found = head.best_with_log_z(HIDDEN, 2)
    np.testing.assert_array_equal(found.fallback, every.errors > most)
    assert 0 < found.fallback.sum() < len(HIDDEN)
    full = FullHead(SOFTMAX).best_with_log_z(HIDDEN, 2)
    for name in set(found._fields) - {"fallback"}:
        mine, theirs = (getattr(best, name)[found.fallback] for best in (found, full))
        np.testing.assert_array_equal(mine, theirs, name)
    assert (found.log_z[~found.fallback, 2] == -np.inf).all()


def test_without_an_estimate_log_z_takes_a_pass_over_w() -> None:
    head = make_screen(ARRAYS)
    assert not head.estimates_log_z
    pairs = zip(
        head.best_with_log_z(HIDDEN, 4), FullHead(SOFTMAX).best_with_log_z(HIDDEN, 4), strict=True
    )
    for mine, theirs in pairs:
        np.testing.assert_array_equal(mine, theirs)
