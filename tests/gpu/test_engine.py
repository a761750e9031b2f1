"""A decoder on a GPU gives the numbers of the host: arrays to arrays, tensors to tensors."""

from typing import Any

import numpy as np
import pytest
import torch

from logitsieve.api.constraints import Constraints
from logitsieve.api.errors import InvalidRequest
from logitsieve.client.beam_search import SearchResult, beam_search
from logitsieve.decoding import LocalDecoder
from tests.gpu.opened import noting_waits, there
from tests.synthetic import make_hidden

HIDDEN = make_hidden(4, 12)
SEEDS = np.array([1, 2, 3, 2**64 - 5], np.uint64)
TARGETS = np.random.default_rng(3).integers(0, 260, (4, 5))
RULES = Constraints(banned=[3, 7], biased=[9], bias=[2.0])

Pair = tuple[LocalDecoder, LocalDecoder]  # on a GPU, on the host


def assert_same(found: Any, host: Any) -> None:
    """Equal in everything but for what rounds in log Z, and the width of its interval."""
    for name in found._fields:
        mine, theirs = getattr(found, name), getattr(host, name)
        if name == "answer":
            assert_same_answer(mine, theirs)
        elif theirs is None:  # `perturbed`, of draws without replacement alone
            assert mine is None
        elif theirs.dtype == np.float32:
            np.testing.assert_allclose(mine, theirs, rtol=1e-6, atol=4e-6, err_msg=name)
        else:
            np.testing.assert_array_equal(mine, theirs, err_msg=name)


def assert_same_answer(mine: Any, theirs: Any) -> None:
    for name in ("proven", "fallback"):
        np.testing.assert_array_equal(getattr(mine, name), getattr(theirs, name), err_msg=name)
    for name in ("model", "version", "digest", "head", "knobs", "normalizer"):
        assert getattr(mine, name) == getattr(theirs, name), name
    assert (mine.log_z is None) == (theirs.log_z is None)
    assert (mine.log_z_low is None) == (theirs.log_z_low is None)
    if theirs.log_z_low is not None:
        known = ~np.isnan(theirs.log_z)  # finished hypotheses have none
        assert (np.isnan(mine.log_z) == ~known).all()
        assert (mine.log_z_low <= theirs.log_z_high)[known].all()
        assert (theirs.log_z_low <= mine.log_z_high)[known].all()
    elif theirs.log_z is not None:
        np.testing.assert_allclose(mine.log_z, theirs.log_z, rtol=1e-6)


def on_host(reply: Any) -> Any:
    """Return the same in arrays; it must be all in tensors."""

    def copied(value: Any) -> Any:
        if hasattr(value, "_fields"):
            return type(value)(*map(copied, value))
        assert not isinstance(value, np.ndarray)
        return value.cpu().numpy() if isinstance(value, torch.Tensor) else value

    return copied(reply)


def assert_all_same(pair: Pair, method: str, *arguments: Any, **asked: Any) -> Any:
    """Compare both decoders' answers to arrays, and to the same in tensors; return the host's."""

    def sent(value: Any) -> Any:
        return there(value) if isinstance(value, np.ndarray) else value

    host = getattr(pair[1], method)(*arguments, **asked)
    assert_same(getattr(pair[0], method)(*arguments, **asked), host)
    tensors = {name: sent(value) for name, value in asked.items()}
    reply = getattr(pair[0], method)(*map(sent, arguments), **tensors)
    assert_same(on_host(reply), host)
    return host


@pytest.mark.parametrize("head", ["full", "sketch", "screen"])
@pytest.mark.parametrize("normalizer", [None, "full", "sketch", "candidates", "sampled"])
@pytest.mark.parametrize("constraints", [None, RULES])
def test_topk(pair: Pair, head: Any, normalizer: Any, constraints: Any) -> None:
    if head == "sketch" and normalizer in ("candidates", "sampled"):
        pytest.skip("log Z of the ids that the host's sketch leaves")
    assert_all_same(
        pair, "topk", HIDDEN, 3, head=head, normalizer=normalizer, constraints=constraints
    )


@pytest.mark.parametrize("normalizer", [None, "full", "sketch"])
@pytest.mark.parametrize("constraints", [None, RULES])
@pytest.mark.parametrize("token_ids", [TARGETS, TARGETS[:, 0]])
def test_scores(pair: Pair, normalizer: Any, constraints: Any, token_ids: np.ndarray) -> None:
    asked: Any = {"normalizer": normalizer, "constraints": constraints}
    scored = pair[0].score(there(HIDDEN), there(token_ids), **asked)
    full = pair[1].score(HIDDEN, token_ids, normalizer="full", constraints=constraints)
    np.testing.assert_allclose(on_host(scored).log_probs, full.log_probs, atol=2e-6)
    if normalizer == "full":
        assert_all_same(pair, "score", HIDDEN, token_ids, **asked)


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"temperature": 0.7, "step": 2**64 - 1},
        {"temperature": 1.3, "normalizer": "full"},
        {"normalizer": "sketch", "constraints": RULES},
        {"top_k": 7, "temperature": 1.7},
        {"top_k": 100},
        {"temperature": 0.0},
        {"top_p": 0.9},
        {"top_p": 0.95, "min_p": 0.02, "temperature": 1.7, "constraints": RULES},
        {"min_p": 0.1, "temperature": 0.6},
    ],
)
@pytest.mark.parametrize("head", ["full", "sketch", "screen"])
def test_draws(pair: Pair, asked: dict[str, Any], head: Any) -> None:
    if head == "screen" and asked.get("normalizer") == "sketch":
        pytest.skip("scores by an interval that is wider on the host")
    filtered = {"top_p", "min_p"} & set(asked)
    if head == "sketch" or (head == "screen" and filtered) or "normalizer" in asked:
        asked = {**asked, "width": 1e-6}  # else it is wider on the host
    assert_all_same(pair, "sample", HIDDEN, 9, seeds=SEEDS, head=head, **asked)


def hypotheses(seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        "scores": -random.exponential(2.0, 4).astype(np.float32),
        "lengths": random.integers(0, 9, 4).astype(np.int32),
        "finished": random.random(4) < 0.4,
    }


@pytest.mark.parametrize(
    ("head", "beams_in", "beams_out", "alpha"),
    [("full", 1, 4, 0.6), ("screen", 2, 11, -2.0), ("sketch", 4, 1, 0.0), ("full", 4, 5, 1.0)],
)
@pytest.mark.parametrize("constraints", [None, RULES])
def test_beams(
    pair: Pair, head: Any, beams_in: int, beams_out: int, alpha: float, constraints: Any
) -> None:
    asked: Any = {"head": head, "beams_in": beams_in, "beams_out": beams_out, "eos_ids": [17, 5]}
    asked |= {"length_penalty": alpha, "constraints": constraints}
    for seed in range(3):
        assert_all_same(pair, "beam_step", HIDDEN, **hypotheses(seed), **asked)


def test_a_search_whose_model_is_on_the_gpu(pair: Pair) -> None:
    contexts = make_hidden(50, 12, seed=9)

    def search(decoder: LocalDecoder, of: Any) -> SearchResult:
        return beam_search(
            decoder, HIDDEN[:2], lambda parents, tokens: of(contexts[tokens % 50]),
            num_beams=2, eos_ids=[3], max_tokens=3, head="full",
        )  # fmt: skip

    gpu, host = search(pair[0], there), search(pair[1], np.asarray)
    for mine, theirs in zip(gpu.hypotheses, host.hypotheses, strict=True):
        assert [each.tokens for each in mine] == [each.tokens for each in theirs]
    assert gpu.proven.tolist() == host.proven.tolist()


def test_the_best_ids_of_tensors_are_not_waited_for(pair: Pair) -> None:
    hidden_states = there(HIDDEN)
    for head in ("full", "screen"):
        pair[0].topk(hidden_states, 3, head=head)  # which compiles kernels
        with noting_waits() as waits:
            pair[0].topk(hidden_states, 3, head=head)
        assert waits == []


def test_a_bad_row_has_no_ids_in_topk_and_is_refused_elsewhere(pair: Pair) -> None:
    hidden_states = there(HIDDEN)
    hidden_states[2, 1] = torch.inf
    top: Any = pair[0].topk(hidden_states, 2, head="full")
    assert (top.ids < 0).any(1).tolist() == [False, False, True, False]
    assert top.answer.proven.tolist() == [True, True, False, True]
    for ask in (
        lambda: pair[0].topk(hidden_states, 2, normalizer="full"),
        lambda: pair[0].score(hidden_states, there(TARGETS)),
        lambda: pair[0].sample(hidden_states, 2),
        lambda: pair[0].beam_step(hidden_states, beams_in=2, beams_out=3),
    ):
        with pytest.raises(InvalidRequest, match=r"hidden_states\[2\]"):
            ask()
