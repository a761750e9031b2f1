"""log Z by low-rank previews, against float64."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from logitsieve.decoding import NORMALIZERS, LocalDecoder
from logitsieve.decoding.logit_edits import edits_of
from logitsieve.index import HeadEntry, open_index, write_index
from logitsieve.index_builder.fit_svd import preview_arrays
from tests.decoding.drawn import edited_logits
from tests.decoding.normalizers.normalized import CONSTRAINTS, HIDDEN, SOFTMAX, normalized
from tests.oracle import log_sum_exp, logits64
from tests.synthetic import make_hidden, make_softmax


@pytest.mark.parametrize("head", ["screen", "svd", "certified"])
@pytest.mark.parametrize("constraints", CONSTRAINTS)
def test_lowrank_has_previews_of_what_was_not_scanned(
    decoder: LocalDecoder, constraints: str, head: str
) -> None:
    asked, every = CONSTRAINTS[constraints], np.tile(np.arange(300, dtype=np.int32), (5, 1))
    answering = decoder.index.head(head)
    logits = (
        NORMALIZERS["lowrank"]
        .target_logits(decoder.index, answering, HIDDEN, every, None)[1]
        .astype(np.float64)
    )
    found, exact = answering.candidates(HIDDEN, 1), logits64(SOFTMAX.weight, SOFTMAX.bias, HIDDEN)
    rows = np.repeat(np.arange(5), np.diff(found.offsets))
    np.testing.assert_array_equal(
        logits[rows, found.ids], exact[rows, found.ids].astype(np.float32)
    )
    assert np.abs(logits - exact).max() > 0.01  # a third of the dimensions
    if asked is not None:
        edits, edited = edits_of(SOFTMAX, asked, HIDDEN), edited_logits(SOFTMAX, HIDDEN, asked)
        named = np.repeat(np.arange(5), np.diff(edits.offsets)), edits.ids
        logits[edits.allow_list], logits[named] = -np.inf, edited[named]
    value = normalized(decoder, "lowrank", constraints=asked, head=head, k=1, scale=0.7).value
    wanted = np.array([log_sum_exp(row * 0.7) for row in logits])
    assert value is not None
    np.testing.assert_allclose(value, wanted, rtol=3e-7, atol=3e-7)


def test_previews_are_those_of_all_dimensions_where_all_are_kept(tmp_path: Path) -> None:
    softmax = make_softmax(77, 20)
    path = write_index(
        tmp_path / "demo" / "1",
        softmax=softmax,
        parts={"svd": preview_arrays(softmax, 20)},
        heads={"exact": HeadEntry(), "svd": HeadEntry("svd", {"width": 20, "candidates": 1})},
        default_head="svd",
    )
    index, hidden = open_index(path), make_hidden(3, 20)
    every = np.tile(np.arange(77, dtype=np.int32), (3, 1))
    logits = NORMALIZERS["lowrank"].target_logits(index, index.head("svd"), hidden, every, None)[1]
    wanted = logits64(softmax.weight, softmax.bias, hidden)
    np.testing.assert_allclose(logits, wanted, rtol=1e-4, atol=1e-4)
