"""log Z by every normalizer, under constraints and at temperatures, against float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logitsieve.api.constraints import Constraints
from logitsieve.api.decoder import NORMALIZER_CODES
from logitsieve.api.errors import InvalidRequest
from logitsieve.decoding import NORMALIZERS, LocalDecoder
from logitsieve.decoding import normalizers as methods
from logitsieve.decoding.logit_edits import edits_of
from logitsieve.decoding.normalizers import interval, low_rank_scores
from logitsieve.index import HeadEntry, open_index, write_index
from logitsieve.index_builder.fit_svd import preview_arrays
from tests.decoding.drawn import edited_logits
from tests.oracle import best, log_sum_exp, logits64
from tests.server.running import write_model, write_whole
from tests.synthetic import make_hidden, make_softmax

SOFTMAX = make_softmax()  # what `write_whole` writes: V = 300, D = 24
HIDDEN = make_hidden(5, scale=0.4)
ORDER = best(logits64(SOFTMAX.weight, SOFTMAX.bias, HIDDEN), 300)
CONSTRAINTS: dict[str, Constraints | None] = {
    "none": None,
    "best banned": Constraints(banned=[row[:5].tolist() for row in ORDER]),
    "nearly all changed": Constraints(
        banned=[[1]] * 5, biased=[[*range(290)]] * 5, bias=[[-2.5] * 290] * 5
    ),
    "few allowed": Constraints(allowed=[row[::60].tolist() for row in ORDER]),
    "some allow few": Constraints(allowed=[[3, 4], [*range(300)], [7], [*range(1, 300)], [0]]),
    "one left": Constraints(banned=[np.delete(row, 150).tolist() for row in ORDER]),
}


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> LocalDecoder:
    folder = tmp_path_factory.mktemp("models")
    return LocalDecoder(open_index(write_whole(folder, "demo"), kernel_cache=folder / "kernels"))


def normalized(
    decoder: LocalDecoder,
    name: str,
    *,
    constraints: Constraints | None = None,
    head: str = "screen",
    scale: float = 1.0,
    k: int = 5,
    hidden: np.ndarray = HIDDEN,
) -> methods.LogZ:
    index, edits = decoder.index, None
    if constraints is not None:
        edits = edits_of(index.softmax, constraints, hidden)
    return NORMALIZERS[name](index, index.head(head), hidden, k, edits, scale)


def truth(constraints: Constraints | None, scale: float = 1.0) -> np.ndarray:
    logits = logits64(SOFTMAX.weight, SOFTMAX.bias, HIDDEN)
    if constraints is not None:
        logits = edited_logits(SOFTMAX, HIDDEN, constraints)
    return np.array([log_sum_exp(row * scale) for row in logits])


SCALES = [1e-4, 0.5, 1.0, 2.0, 100.0, 1e5]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("constraints", CONSTRAINTS)
def test_exact_is_over_the_vocabulary_whatever_head_answers(
    decoder: LocalDecoder, constraints: str, scale: float
) -> None:
    asked = CONSTRAINTS[constraints]
    for head in decoder.index.heads:
        found = normalized(decoder, "exact", constraints=asked, head=head, scale=scale)
        assert found.value is not None
        assert found[1:] == (None, None, None)
        np.testing.assert_allclose(found.value, truth(asked, scale), rtol=3e-7, atol=3e-7)


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("constraints", CONSTRAINTS)
def test_certified_is_an_interval_that_holds_it(
    decoder: LocalDecoder, constraints: str, scale: float
) -> None:
    asked = CONSTRAINTS[constraints]
    found, wanted = (
        normalized(decoder, "certified", constraints=asked, scale=scale),
        truth(asked, scale),
    )
    assert found.value is not None
    assert found.low is not None
    assert found.high is not None
    assert (found.low <= found.value).all()
    assert (found.value <= found.high).all()
    listed = found.low == found.high  # all that remains was named, and computed: as printed
    np.testing.assert_allclose(found.value[listed], wanted[listed], rtol=3e-7, atol=3e-7)
    assert (found.low <= wanted)[~listed].all()
    assert (wanted <= found.high)[~listed].all()


@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0, 1e5])
@pytest.mark.parametrize("constraints", CONSTRAINTS)
def test_candidates_is_over_what_was_scanned_and_what_was_edited(
    decoder: LocalDecoder, constraints: str, scale: float
) -> None:
    asked = CONSTRAINTS[constraints]
    value = normalized(decoder, "candidates", constraints=asked, scale=scale).value
    assert value is not None
    found = decoder.index.head("screen").candidates(HIDDEN, 5)
    logits = logits64(SOFTMAX.weight, SOFTMAX.bias, HIDDEN)
    edits = None
    if asked is not None:
        logits = edited_logits(SOFTMAX, HIDDEN, asked)
        edits = edits_of(SOFTMAX, asked, HIDDEN)
    for row in range(5):
        inside = set(found.ids[found.offsets[row] : found.offsets[row + 1]].tolist())
        if edits is not None:
            inside |= set(edits.ids[edits.offsets[row] : edits.offsets[row + 1]].tolist())
        open_ = [i for i in sorted(inside) if logits[row, i] > -np.inf]
        if not open_:
            assert value[row] == -np.inf
            continue
        wanted = log_sum_exp(logits[row, open_] * scale)
        assert value[row] == pytest.approx(wanted, rel=3e-7, abs=3e-7)


@pytest.mark.parametrize("head", ["screen", "svd", "certified"])
@pytest.mark.parametrize("constraints", CONSTRAINTS)
def test_lowrank_has_previews_of_what_was_not_scanned(
    decoder: LocalDecoder, constraints: str, head: str
) -> None:
    asked, every = CONSTRAINTS[constraints], np.tile(np.arange(300, dtype=np.int32), (5, 1))
    answering = decoder.index.head(head)
    logits = low_rank_scores(decoder.index, answering, HIDDEN, every, None)[1].astype(np.float64)
    found, exact = answering.candidates(HIDDEN, 1), logits64(SOFTMAX.weight, SOFTMAX.bias, HIDDEN)
    rows = np.repeat(np.arange(5), np.diff(found.offsets))
    np.testing.assert_array_equal(
        logits[rows, found.ids], exact[rows, found.ids].astype(np.float32)
    )
    assert np.abs(logits - exact).max() > 0.01  # a third of the dimensions
    if asked is not None:
        edits, edited = edits_of(SOFTMAX, asked, HIDDEN), edited_logits(SOFTMAX, HIDDEN, asked)
        named = np.repeat(np.arange(5), np.diff(edits.offsets)), edits.ids
        logits[edits.only], logits[named] = -np.inf, edited[named]
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
    logits = low_rank_scores(index, index.head("svd"), hidden, every, None)[1]
    wanted = logits64(softmax.weight, softmax.bias, hidden)
    np.testing.assert_allclose(logits, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("normalizer", ["exact", "lowrank", "candidates", "certified"])
@pytest.mark.parametrize("constraints", CONSTRAINTS)
def test_probabilities_of_all_ids_sum_to_one(
    decoder: LocalDecoder, constraints: str, normalizer: Any
) -> None:
    asked, every = CONSTRAINTS[constraints], np.tile(np.arange(300), (5, 1))
    reply = decoder.score(HIDDEN, every, constraints=asked, normalizer=normalizer)
    total, answer = np.exp(reply.log_probs.astype(np.float64)).sum(axis=1), reply.answer
    if normalizer == "candidates" and constraints == "one left":
        return  # which is no candidate
    if normalizer != "certified":
        np.testing.assert_allclose(total, 1, rtol=3e-6)
        return
    assert answer.log_z is not None
    assert answer.log_z_low is not None
    assert answer.log_z_high is not None
    assert (np.log(total) >= answer.log_z_low - answer.log_z - 3e-6).all()
    assert (np.log(total) <= answer.log_z_high - answer.log_z + 3e-6).all()


class Wide:
    """V = 4000, of which the best 128 are looked at."""

    def __init__(self, folder: Path) -> None:
        self.softmax = make_softmax(4000, 16, seed=3, scale=0.6)
        self.hidden = make_hidden(400, 16, seed=4)
        logits = logits64(self.softmax.weight, self.softmax.bias, self.hidden)
        self.log_z = np.array([log_sum_exp(row) for row in logits])
        path = write_index(
            folder / "wide" / "1",
            softmax=self.softmax,
            parts={"svd": preview_arrays(self.softmax, 16)},
            heads={"exact": HeadEntry(), "svd": HeadEntry("svd", {"width": 16})},
            default_head="svd",
        )
        self.index = open_index(path)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Wide:
    return Wide(tmp_path_factory.mktemp("wide"))


def test_sampled_errs_as_it_says_and_to_no_side(wide: Wide) -> None:
    head = wide.index.head("svd")
    found = methods.with_sampled_tail(wide.index, head, wide.hidden, 1, None, 1.0)
    assert found.value is not None
    assert found.error is not None
    off = (found.value - wide.log_z) / found.error
    assert abs(off.mean()) < 4 / np.sqrt(len(off))
    assert 0.9 < off.std() < 1.2
    assert (found.error > 0).all()


def test_sampled_depends_on_its_row_alone(wide: Wide) -> None:
    head = wide.index.head("svd")
    together = methods.with_sampled_tail(wide.index, head, wide.hidden[:9], 1, None, 1.0)
    for row in range(9):
        one = wide.hidden[row : row + 1]
        alone = methods.with_sampled_tail(wide.index, head, one, 1, None, 1.0)
        assert together.value is not None
        assert alone.value is not None
        assert alone.value[0] == together.value[row]


@pytest.mark.parametrize("constraints", CONSTRAINTS)
@pytest.mark.parametrize("scale", [1e-4, 1.0])
def test_sampled_errs_by_nothing_where_all_is_looked_at(
    decoder: LocalDecoder, constraints: str, scale: float
) -> None:
    asked = CONSTRAINTS[constraints]
    for head in ("screen", "certified", "exact"):
        found = normalized(decoder, "sampled", constraints=asked, head=head, scale=scale)
        assert found.value is not None
        assert found.error is not None
        sure = found.error == 0
        wanted = truth(asked, scale)
        np.testing.assert_allclose(found.value[sure], wanted[sure], rtol=3e-7, atol=3e-7)
        assert head == "screen" or sure.all()


@settings(max_examples=100, deadline=None)
@given(
    value=st.floats(-1e45, 1e45),
    below=st.floats(0, 1e3) | st.just(float("inf")),
    above=st.floats(0, 1e3),
)
def test_an_interval_is_rounded_outward(value: float, below: float, above: float) -> None:
    found = interval(np.array([[value, value - below, value + above]]))
    assert found.value is not None
    assert found.low is not None
    assert found.high is not None
    assert float(found.low[0]) <= value - below
    assert value + above <= float(found.high[0])
    assert found.low[0] <= found.value[0] <= found.high[0]


def test_slices_do_not_change_a_row(decoder: LocalDecoder) -> None:
    """One row in each slice, and all in one."""
    hidden = np.repeat(HIDDEN, 3000, axis=0)
    exact = decoder.index.head("exact")
    many = methods.over_vocabulary(decoder.index, exact, hidden, 1, None, 1.0).value
    few = methods.over_vocabulary(decoder.index, exact, HIDDEN, 1, None, 1.0).value
    assert few is not None
    np.testing.assert_array_equal(many, np.repeat(few, 3000))


def test_what_a_normalizer_needs_is_named(tmp_path: Path) -> None:
    decoder = LocalDecoder(open_index(write_model(tmp_path)))
    names: list[Any] = ["lowrank", "certified"]
    for name in names:
        with pytest.raises(InvalidRequest, match="the index has exact, screen") as caught:
            decoder.topk(make_hidden(1), 1, normalizer=name)
        assert caught.value.field == "normalizer"


@pytest.mark.parametrize("name", ["none", 3])
def test_an_unknown_one_names_those_that_are_built(decoder: LocalDecoder, name: Any) -> None:
    with pytest.raises(InvalidRequest, match="candidates, lowrank, sampled") as caught:
        decoder.topk(make_hidden(1), 1, normalizer=name)
    assert caught.value.field == "normalizer"


def test_every_normalizer_has_a_code() -> None:
    assert NORMALIZERS.keys() == NORMALIZER_CODES.keys()
