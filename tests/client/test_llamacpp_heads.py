from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.requests import Sampling
from logitsieve.client.llamacpp_heads import (
    DecoderOutput,
    DenseOutput,
    RowEdits,
    as_constraints,
    pick,
)
from tests.client.dense import DenseDecoder
from tests.oracle import chi_square_p

V, D, B, CAP = 60, 8, 5, 3.0
EDITS = {
    "none": RowEdits(),
    "banned": RowEdits(banned=[3, 5]),
    "allowed": RowEdits(allowed=list(range(10, 30)), banned=[12]),
    "penalised": RowEdits(repeated=list(range(40)), repetition_penalty=1.5),
    "biased": RowEdits(bias={3: 2.0, 59: -1.0}, banned=[7], repeated=[9], repetition_penalty=2.0),
}


@pytest.fixture(scope="module")
def weight() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((V, D), np.float32) * 2


@pytest.fixture(scope="module")
def hidden_states() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((B, D), np.float32)


def drawing(rows: int = B, **options: Any) -> Sampling:
    merged: Any = {"seeds": 5, **options}
    return Sampling.of(rows, 1, merged)


@pytest.mark.parametrize("edits", EDITS)
@pytest.mark.parametrize("options", [None, {"top_k": 4}, {"top_k": 20, "top_p": 0.7}], ids=str)
def test_a_softcap_is_applied_before_edits_as_in_the_dense_head(
    weight: np.ndarray, hidden_states: np.ndarray, edits: str, options: dict[str, Any] | None
) -> None:
    given = [EDITS[edits]] * B
    drawn = None if options is None else drawing(**options)
    logits = CAP * np.tanh(hidden_states.astype(np.float64) @ weight.T.astype(np.float64) / CAP)
    if drawn is not None and EDITS[edits].valued:  # the k best are of ids that no edit changes
        drawn = drawn._replace(top_k=V, min_p=0.5)
    expected = DenseOutput().choose(logits.astype(np.float32), given, drawn)
    k = V - len({*EDITS[edits].valued, *EDITS[edits].banned})
    if drawn is not None and EDITS[edits].valued:
        drawn = drawn._replace(top_k=k)
    chosen = DecoderOutput(DenseDecoder(weight), {}, V, CAP).choose(hidden_states, given, drawn)
    assert chosen.ids.tolist() == expected.ids.tolist()


def test_under_a_softcap_only_what_rounding_leaves_open_is_unproven() -> None:
    """Ids 3 and 40 differ by less than half a float32's spacing, 5 is far from them."""
    weight = np.zeros((V, D), np.float32)
    weight[[3, 40, 5], 0], weight[40, 1] = (10, 10, 1), 2.0**-22
    head = DecoderOutput(DenseDecoder(weight), {}, V, CAP)
    edits = [RowEdits(bias={5: -1.0}), RowEdits(bias={3: 1e-9}), RowEdits(bias={3: 1.0})]
    chosen = head.choose(np.ones((3, D), np.float32), edits, None)
    assert chosen.ids[[0, 2]].tolist() == [40, 3]
    assert chosen.proven.tolist() == [True, False, True]
    drawn = head.choose(np.ones((1, D), np.float32), edits[:1], drawing(1, top_k=2))
    assert not drawn.proven.any()


@pytest.mark.parametrize("edits", EDITS)
def test_the_decoder_applies_the_edits(
    weight: np.ndarray, hidden_states: np.ndarray, edits: str
) -> None:
    given = [EDITS[edits]] * B
    chosen = DecoderOutput(DenseDecoder(weight), {}, V, None).choose(hidden_states, given, None)
    dense = DenseOutput().choose((hidden_states @ weight.T).astype(np.float32), given, None)
    assert chosen.ids.tolist() == dense.ids.tolist()


def test_all_logits_of_a_softcap_are_not_drawn_from(
    weight: np.ndarray, hidden_states: np.ndarray
) -> None:
    head = DecoderOutput(DenseDecoder(weight), {}, V, CAP)
    with pytest.raises(InvalidRequest, match="top_k: got 0, allowed: 1 or more where the model"):
        head.choose(hidden_states, [RowEdits()] * B, drawing(top_p=0.9))


def test_log_probabilities_are_natural_ones(weight: np.ndarray, hidden_states: np.ndarray) -> None:
    logits = hidden_states.astype(np.float64) @ weight.T.astype(np.float64)
    ids = [3, 0, 59, 7, 7]
    expected = logits[range(B), ids] - np.logaddexp.reduce(logits, axis=1)
    decoder = DenseDecoder(weight)
    of_decoder = DecoderOutput(decoder, {"head": "screen"}, V, None).scores(hidden_states, ids, 0)
    np.testing.assert_allclose(of_decoder.log_probs, expected, atol=1e-5)
    assert decoder.asked == [("score", {"head": "screen", "normalizer": "full"})]
    dense = DenseOutput().scores(logits.astype(np.float32), ids, 0)
    np.testing.assert_allclose(dense.log_probs, expected, atol=1e-5)
    with pytest.raises(InvalidRequest, match="logprobs: got True, allowed: a model that does not"):
        DecoderOutput(decoder, {}, V, CAP).scores(hidden_states, ids, 0)


def test_the_best_ids_are_scored_like_targets(
    weight: np.ndarray, hidden_states: np.ndarray
) -> None:
    logits = hidden_states.astype(np.float64) @ weight.T.astype(np.float64)
    order = np.argsort(-logits, axis=1)
    for head in (DenseOutput(), DecoderOutput(DenseDecoder(weight), {}, V, None)):
        rows = hidden_states if head.headless else logits.astype(np.float32)
        scores = head.scores(rows, order[:, 1].tolist(), 3)
        assert scores.ids.tolist() == order[:, :3].tolist()
        assert (scores.best[:, 1] == scores.log_probs).all()


@pytest.mark.parametrize("k", [0, 1, 3, 40, 41, V])
def test_of_equal_logits_the_lowest_ids_are_best(k: int) -> None:
    rng = np.random.default_rng(0)
    for levels in (1, 2, 3):
        row = rng.integers(0, levels, (1, V)).astype(np.float32)
        expected = np.lexsort((np.arange(V), -row[0]))[:k]
        assert DenseOutput().scores(row, [0], k).ids.tolist() == [expected.tolist()]


def test_constraints_are_none_without_edits_and_the_lower_of_equal_ids_is_best() -> None:
    assert as_constraints([RowEdits(), RowEdits(repeated=[3])]) is None
    made = as_constraints([RowEdits(banned=[1]), RowEdits(bias={2: 0.5})])
    assert made is not None
    assert made.banned == [[1], []]
    assert (made.biased, made.bias) == ([[], [2]], [[], [0.5]])
    assert pick(np.array([7, 4, 9]), np.array([1.0, 1.0, 0.0]), None, 0) == 4
    with pytest.raises(InvalidRequest, match="allowed"):
        pick(np.array([7]), np.array([-np.inf]), None, 0)


def test_draws_follow_the_filtered_law() -> None:
    logits = np.log(np.array([0.4, 0.05, 0.3, 0.15, 0.1]))
    ids = np.array([10, 11, 12, 13, 14])
    cases: dict[tuple[str, float], list[float]] = {
        ("top_k", 2): [0.4, 0, 0.3, 0, 0],
        ("top_p", 0.8): [0.4, 0, 0.3, 0.15, 0],
        ("min_p", 0.3): [0.4, 0, 0.3, 0.15, 0],
        ("temperature", 0.5): [0.16, 0.0025, 0.09, 0.0225, 0.01],
    }
    for (option, value), law in cases.items():
        options = drawing(1, **{option: value})
        made = [pick(ids, logits, options._replace(step=step), 0) for step in range(2000)]
        counts = np.array([made.count(one) for one in ids])
        kept = np.array(law) > 0
        assert counts[~kept].sum() == 0
        expected = np.array(law)[kept] / sum(law)
        assert chi_square_p(counts[kept], expected) > 1e-4
