"""A beam step on the GPU chooses the pairs of the host, in its order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from logitsieve.client.beam_search import SearchResult, beam_search
from logitsieve.decoding import LocalDecoder
from tests.gpu.replies import (
    HIDDEN,
    Pair,
    assert_same,
    hypotheses,
    there,
)
from tests.synthetic import make_hidden


@pytest.mark.parametrize(
    ("head", "beams_in", "beams_out", "alpha"),
    [("exact", 1, 4, 0.6), ("screen", 2, 11, -2.0), ("certified", 4, 1, 0.0), ("exact", 4, 5, 1.0)],
)
def test_beams(pair: Pair, head: Any, beams_in: int, beams_out: int, alpha: float) -> None:
    best = pair[1].topk(HIDDEN, 3).ids
    ends = [int(best[0, 1]), 17, int(best[3, 0])]
    asked: Any = {"head": head, "beams_in": beams_in, "beams_out": beams_out, "eos_ids": ends}
    asked["length_alpha"] = alpha
    for seed in range(2):
        vectors = hypotheses(seed)
        host = pair[1].beam_step(HIDDEN, **vectors, **asked)
        tensors: Any = {name: there(vector) for name, vector in vectors.items()}
        assert_same(pair[0].beam_step(there(), **tensors, **asked), host)
    assert_same(pair[0].beam_step(there(), **vectors, **asked), host)


def test_equal_pairs_are_in_the_hosts_order(pair: Pair) -> None:
    """Hypotheses that are the same three times over."""
    hidden = np.repeat(HIDDEN[:1], 3, axis=0)
    asked: Any = {"beams_in": 3, "beams_out": 9, "head": "exact"}
    gpu, host = pair[0].beam_step(there(hidden), **asked), pair[1].beam_step(hidden, **asked)
    assert_same(gpu, host)
    assert gpu.parents[0].tolist() == [0, 1, 2] * 3


@pytest.mark.parametrize(("beams_in", "beams_out"), [(1, 270), (2, 263)])
def test_groups_with_too_few_pairs(pair: Pair, beams_in: int, beams_out: int) -> None:
    asked: Any = {"beams_in": beams_in, "beams_out": beams_out, "eos_ids": [3], "head": "exact"}
    finished = np.array([False, True, True, False])
    gpu = pair[0].beam_step(there(), finished=there(finished), **asked)
    assert_same(gpu, pair[1].beam_step(HIDDEN, finished=finished, **asked))
    assert (gpu.tokens[:, -1] == -1).all()


def test_a_hypothesis_that_cannot_be_answered_has_no_continuations(pair: Pair) -> None:
    hidden, asked = there(), dict[str, Any](beams_in=2, beams_out=3, head="exact")
    hidden[2, 1] = torch.nan
    gpu, host = pair[0].beam_step(hidden, **asked), pair[1].beam_step(HIDDEN, **asked)
    assert gpu.answer.exact.tolist() == [True, True, False, False]
    assert (gpu.parents[1] == 1).all()
    np.testing.assert_array_equal(gpu.tokens[0], host.tokens[0])
    for wrong in (np.nan, np.inf, -np.inf):
        scores = there(np.array([wrong, 0, 0, wrong], np.float32))
        assert pair[0].beam_step(there(), scores, **asked).parents[:, 0].tolist() == [1, 0]


def test_a_search_whose_model_is_on_the_gpu(pair: Pair) -> None:
    contexts = make_hidden(50, 12, seed=9)

    def search(decoder: LocalDecoder, of: Any) -> SearchResult:
        return beam_search(
            decoder, HIDDEN[:2], lambda parents, tokens: of(contexts[tokens % 50]),
            beams=2, eos_ids=[3], max_tokens=3, head="exact",
        )  # fmt: skip

    gpu, host = search(pair[0], there), search(pair[1], np.asarray)
    for mine, theirs in zip(gpu.hypotheses, host.hypotheses, strict=True):
        assert [each.tokens for each in mine] == [each.tokens for each in theirs]
    assert gpu.exact.tolist() == host.exact.tolist()
