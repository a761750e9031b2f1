"""A decoder whose index is on a card answers as the one on the host."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from logitsieve.decoding import LocalDecoder
from logitsieve.heads import ExactHead
from logitsieve.heads.card import device_named
from logitsieve.index import HeadEntry, open_index, write_index
from logitsieve.types.constraints import Constraints
from logitsieve.types.errors import InvalidRequest
from tests.synthetic import ARRAYS, make_hidden, make_softmax

SOFTMAX = make_softmax(260, 12)
HIDDEN = make_hidden(4, 12)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[LocalDecoder, LocalDecoder]:
    """On a card, and on the host."""
    folder: Path = tmp_path_factory.mktemp("card")
    parts = {"sketch": ARRAYS["certified"](SOFTMAX), "screen": ARRAYS["screen"](SOFTMAX)}
    heads = {"exact": HeadEntry(), "certified": HeadEntry("sketch"), "screen": HeadEntry("screen")}
    path = folder / "lm" / "1"
    write_index(path, softmax=SOFTMAX, parts=parts, heads=heads, default_head="screen")
    return LocalDecoder(open_index(path, device="cuda")), LocalDecoder(open_index(path))


Pair = tuple[LocalDecoder, LocalDecoder]


@pytest.mark.parametrize("head", ["exact", "certified", "screen"])
def test_topk(pair: Pair, head: str) -> None:
    card, host = (each.topk(HIDDEN, 3, head=head, normalizer="exact") for each in pair)
    np.testing.assert_array_equal(card.ids, host.ids)
    np.testing.assert_array_equal(card.logits, host.logits)
    np.testing.assert_array_equal(card.answer.exact, host.answer.exact)
    np.testing.assert_array_equal(card.answer.fallback, host.answer.fallback)
    assert card.answer.log_z is not None
    assert host.answer.log_z is not None
    np.testing.assert_allclose(card.answer.log_z, host.answer.log_z, rtol=3e-7)


def test_constraints(pair: Pair) -> None:
    asked = Constraints(banned=[int(pair[1].topk(HIDDEN, 1).ids[0, 0]), 5], biased=[7], bias=[3.0])
    card, host = (each.topk(HIDDEN, 4, head="exact", constraints=asked) for each in pair)
    np.testing.assert_array_equal(card.ids, host.ids)
    np.testing.assert_array_equal(card.logits, host.logits)


def test_scores_and_beams(pair: Pair) -> None:
    card, host = (each.score(HIDDEN, [[3, 4]] * 4, normalizer="exact") for each in pair)
    np.testing.assert_allclose(card.log_probs, host.log_probs, atol=2e-6)
    stepped, there = (each.beam_step(HIDDEN, beams_in=2, beams_out=3) for each in pair)
    np.testing.assert_array_equal(stepped.tokens, there.tokens)
    np.testing.assert_array_equal(stepped.parents, there.parents)


@pytest.mark.parametrize("step", [0, 7, 2**64 - 1])
def test_draws_of_the_exact_head_are_the_hosts(pair: Pair, step: int) -> None:
    seeds = np.array([1, 2, 3, 2**64 - 5], np.uint64)
    card, host = (
        each.sample(HIDDEN, 3, seeds=seeds, step=step, temperature=0.7, head="exact")
        for each in pair
    )
    np.testing.assert_array_equal(card.ids, host.ids)
    np.testing.assert_allclose(card.log_probs, host.log_probs, atol=2e-6)


def test_draws_of_what_constraints_leave_are_the_hosts(pair: Pair) -> None:
    best = pair[1].topk(HIDDEN, 2).ids.ravel().tolist()
    asked = Constraints(banned=best, biased=[9], bias=[2.0])
    card, host = (
        each.sample(HIDDEN, 2, seeds=[1, 2, 3, 4], head="exact", constraints=asked) for each in pair
    )
    np.testing.assert_array_equal(card.ids, host.ids)


def test_filtered_draws_and_those_of_other_heads(pair: Pair) -> None:
    for target in ({"head": "certified"}, {"head": "screen"}, {"head": "exact", "top_p": 0.5}):
        card, host = (each.sample(HIDDEN, seeds=[1, 2, 3, 4], **target) for each in pair)
        np.testing.assert_array_equal(card.ids, host.ids)


def test_tensors_stay_on_the_card(pair: Pair) -> None:
    hidden = torch.from_numpy(HIDDEN).to(device_named("cuda"))
    reply = pair[0].topk(hidden, 3, head="screen", normalizer="exact")
    host = pair[1].topk(HIDDEN, 3, head="screen", normalizer="exact")
    found = reply.ids, reply.logits, reply.answer.exact, reply.answer.fallback
    there = host.ids, host.logits, host.answer.exact, host.answer.fallback
    for mine, theirs in zip(found, there, strict=True):
        assert isinstance(mine, torch.Tensor)
        np.testing.assert_array_equal(mine.cpu().numpy(), theirs)
    assert isinstance(reply.answer.log_z, torch.Tensor)
    assert host.answer.log_z is not None
    np.testing.assert_allclose(reply.answer.log_z.cpu(), host.answer.log_z, rtol=3e-7)


def test_the_other_methods_answer_a_tensor_in_arrays(pair: Pair) -> None:
    hidden = torch.from_numpy(HIDDEN).to(device_named("cuda"), torch.float64)
    card, host = pair[0].score(hidden, [[3]] * 4), pair[1].score(HIDDEN, [[3]] * 4)
    np.testing.assert_allclose(card.log_probs, host.log_probs, atol=2e-6)
    drawn = pair[0].sample(hidden, seeds=[1, 2, 3, 4], head="exact").ids
    np.testing.assert_array_equal(
        drawn, pair[1].sample(HIDDEN, seeds=[1, 2, 3, 4], head="exact").ids
    )


def test_constrained_tensors_come_back(pair: Pair) -> None:
    hidden = torch.from_numpy(HIDDEN).to(device_named("cuda"))
    reply = pair[0].topk(hidden, 2, head="exact", constraints=Constraints(banned=[3]))
    host = ExactHead(SOFTMAX).topk(HIDDEN, 3)
    assert isinstance(reply.ids, torch.Tensor)
    for row, ids in enumerate(host.ids):
        assert reply.ids[row].tolist() == [i for i in ids if i != 3][:2]


def test_a_bad_row_of_a_tensor_has_no_log_z(pair: Pair) -> None:
    hidden = torch.from_numpy(HIDDEN).to(device_named("cuda"))
    hidden[2, 1] = torch.inf
    reply = pair[0].topk(hidden, 2, head="exact", normalizer="exact")
    assert reply.answer.log_z is not None
    assert np.isnan(np.asarray(reply.answer.log_z.tolist())).tolist() == [False, False, True, False]


def test_a_normalizer_that_is_not_on_the_card_is_refused(pair: Pair) -> None:
    hidden = torch.from_numpy(HIDDEN).to(device_named("cuda"))
    with pytest.raises(InvalidRequest, match="normalizer"):
        pair[0].topk(hidden, 2, normalizer="certified")
