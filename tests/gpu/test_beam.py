"""A beam step on the GPU chooses the pairs of the host, in its order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from logitsieve.api.requests import Beams
from logitsieve.client.beam_search import SearchResult, beam_search
from logitsieve.decoding import LocalDecoder
from logitsieve.gpu.beam import next_beams
from logitsieve.gpu.log_z import DeviceLogZ
from logitsieve.heads import Softmax
from logitsieve.index import HeadEntry, open_index, write_index
from logitsieve.kernels.topk.merge import best_pairs
from tests.gpu.replies import (
    HIDDEN,
    Pair,
    assert_same,
    hypotheses,
    there,
)
from tests.synthetic import make_hidden, make_softmax


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


@pytest.mark.parametrize("width", [0.0, 0.2, 1.5])
@pytest.mark.parametrize("alpha", [0.0, 0.6])
def test_pairs_and_doubts_are_those_of_the_hosts_kernel(width: float, alpha: float) -> None:
    """Small whole numbers tie everywhere, with equal and finished hypotheses among them."""
    random = np.random.default_rng(3)
    groups, count, most = 400, 3, 4
    rows = groups * count
    hidden = random.integers(0, 3, (rows, 1)).astype(np.float32)
    top, rest = hidden[:, 0].astype(np.float64), 1.0 + hidden[:, 0] % 2
    logits = np.sort(top[:, None] - random.integers(0, 4, (rows, most)), axis=1)[:, ::-1].copy()
    scores = -random.integers(0, 4, rows).astype(np.float32)
    finished, lengths = random.random(rows) < 0.2, random.integers(0, 2, rows).astype(np.int32)
    log_z = np.stack([top, rest, rest - width, rest + width], axis=1)
    ids = np.tile(np.arange(most, dtype=np.int32), (rows, 1))
    vectors: Any = [there(each) for each in (scores, lengths, finished)]
    beams = Beams(count, most, vectors[0], vectors[1], vectors[2], (0,), alpha)
    found = next_beams(
        beams, there(hidden), there(ids), there(logits), DeviceLogZ.of(there(log_z), 1.0)
    )
    log_z[finished] = logits[finished] = 0
    same = (hidden.reshape(groups, -1, 1) == hidden.reshape(groups, 1, -1)).argmax(axis=2)
    alike = np.where(finished, -1, (same + count * np.arange(groups)[:, None]).ravel())
    parents, places = (np.empty((groups, most), np.int32) for _ in range(2))
    doubtful = np.empty(groups, np.bool_)
    divisors = ((5.0 + (lengths + ~finished)) / 6.0) ** alpha
    best_pairs(
        scores.astype(np.float64), divisors, alike, logits,
        np.where(finished, 1, most), log_z, parents, places, doubtful,
    )  # fmt: skip
    np.testing.assert_array_equal(found[0].cpu(), parents)
    np.testing.assert_array_equal(found[1].cpu(), places * (parents >= 0) - (parents < 0))
    np.testing.assert_array_equal(found[5].cpu(), doubtful)
    assert 0 < doubtful.sum() < groups


def test_what_float64_leaves_open_is_not_exact(tmp_path: Path) -> None:
    """W has each row twice, with either sign, so that h and -h have the same log Z."""
    half = make_softmax(40, 6).weight
    softmax = Softmax(np.concatenate([half, -half]), np.zeros(80, np.float32))
    write_index(
        tmp_path / "1", softmax=softmax, parts={}, heads={"exact": HeadEntry()},
        default_head="exact",
    )  # fmt: skip
    decoder, host = (
        LocalDecoder(open_index(tmp_path / "1", device=device)) for device in ("cuda", "cpu")
    )
    row = make_hidden(1, 6)
    hidden = np.concatenate([row, -row, row, row])
    asked: Any = {"beams_in": 2, "beams_out": 3}
    open_ = decoder.beam_step(there(hidden), **asked)
    assert open_.answer.exact.tolist() == [False, False, True, True]
    by_host = host.beam_step(hidden, **asked)
    assert by_host.answer.exact.tolist() == [False, False, True, True]
    np.testing.assert_array_equal(open_.tokens[1].cpu(), by_host.tokens[1])
