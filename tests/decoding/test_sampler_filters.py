"""Filters in Hugging Face's order, against plain numpy and its own warpers."""

from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st

from logitsieve.api.constraints import Constraints
from logitsieve.api.requests import Sampling
from logitsieve.decoding import LocalDecoder
from logitsieve.decoding.logit_edits import edits_of
from logitsieve.decoding.normalizers import Query
from logitsieve.decoding.shortlists import Shortlist, shortlist
from logitsieve.index import open_index
from tests.decoding.drawn import SIZES, Whole, constraints_of, edited_logits, softmax_of
from tests.oracle import filtered, logits64
from tests.server.running import write_model
from tests.synthetic import make_hidden

Filters = tuple[float, int, float, float]  # temperature, top-k, top-p, min-p
FILTERS: list[Filters] = [
    (1.0, 7, 1.0, 0.0),
    (1.0, 0, 0.9, 0.0),
    (0.7, 0, 1.0, 0.05),
    (1.5, 0, 0.999, 0.0),
    (1.3, 50, 0.8, 0.02),
    (0.8, 3, 0.99, 0.3),
    (2.0, 0, 0.95, 0.2),
    (1e4, 0, 0.9, 0.0),
    (1e4, 0, 1.0, 0.999),
    (1e-5, 20, 0.5, 0.0),
    (1.0, 300, 1.0, 0.0),
    (1.0, 0, 5e-324, 0.0),
    (1.0, 0, float(np.nextafter(1.0, 0.0)), 0.0),
    (1.0, 0, 1.0, 1.0),
]


def listed(
    decoder: LocalDecoder,
    head: str,
    hidden_states: np.ndarray,
    filters: Filters,
    constraints: Constraints | None = None,
) -> Shortlist:
    index, edits = decoder.index, None
    names = "seeds", "temperature", "top_k", "top_p", "min_p"
    options: Any = dict(zip(names, (0, *filters), strict=True))
    how = Sampling.of(len(hidden_states), 1, options)
    if constraints is not None:
        edits = edits_of(index.softmax, constraints, hidden_states)
    return shortlist(Query(index, index.head(head), hidden_states, edits), how)


def rows_of(lists: Shortlist) -> list[list[int]]:
    return [row.tolist() for row in np.split(lists.ids, lists.offsets[1:-1])]


def warped(logits: np.ndarray, filters: Filters) -> set[int]:
    """What Hugging Face's warpers leave, in float64."""
    temperature, top_k, top_p, min_p = filters
    warpers: list[Any] = [transformers.TemperatureLogitsWarper(temperature)]
    warpers += [transformers.TopKLogitsWarper(top_k)] if top_k else []
    warpers += [transformers.TopPLogitsWarper(top_p)] if top_p < 1 else []
    warpers += [transformers.MinPLogitsWarper(min_p)] if min_p else []
    scores = torch.tensor(logits[None])
    for warper in warpers:
        scores = warper(torch.zeros((1, 1), dtype=torch.long), scores)
    return set(np.flatnonzero(torch.isfinite(scores[0]).numpy()).tolist())


@pytest.mark.parametrize("filters", FILTERS, ids=str)
@pytest.mark.parametrize("head", ["sketch", "full"])
def test_filters_are_those_of_hugging_face(whole: Whole, head: str, filters: Filters) -> None:
    decoder, hidden_states = whole(300, False), make_hidden(6, 8, scale=0.5)
    lists = listed(decoder, head, hidden_states, filters)
    softmax = softmax_of(300, False)
    for row, logits in enumerate(logits64(softmax.weight, softmax.bias, hidden_states)):
        ids = rows_of(lists)[row]
        assert (np.diff(logits[ids]) <= 0).all()
        assert lists.logits[lists.offsets[row]] == logits[ids[0]]
        if filters[2] < 1 - 1e-12:  # nearer to 1, rounding decides
            assert set(ids) == warped(logits, filters)
            assert ids == filtered(logits, *filters)
    assert lists.provenance.proven.all()


@given(
    data=st.data(),
    size=st.sampled_from(SIZES),
    tied=st.booleans(),
    rows=st.integers(1, 4),
    head=st.sampled_from(["sketch", "full", "screen"]),
    filters=st.tuples(
        st.sampled_from([0.0, 1e-5, 0.3, 1.0, 3.0, 1e4]),
        st.sampled_from([0, 0, 1, 3, 40, 1000]),
        st.sampled_from([1.0, 0.99, 0.83, 0.31, 1e-9]),
        st.sampled_from([0.0, 0.0, 0.003, 0.37, 1.0]),
    ).filter(lambda each: each[1:] != (0, 1.0, 0.0)),
)
def test_what_remains_under_constraints(
    whole: Whole, data: Any, size: int, tied: bool, rows: int, head: str, filters: Filters
) -> None:
    temperature, top_k, top_p, min_p = filters
    softmax, hidden_states, decoder = (
        softmax_of(size, tied),
        make_hidden(rows, 8),
        whole(size, tied),
    )
    constraints = data.draw(constraints_of(size, rows))
    logits = edited_logits(softmax, hidden_states, constraints)
    if not np.isfinite(logits).any(axis=1).all():
        return
    lists = listed(decoder, head, hidden_states, filters, constraints)
    for row, ids in enumerate(rows_of(lists)):
        assert len(ids) >= 1
        if not lists.provenance.proven[row]:
            assert np.isfinite(logits[row, ids]).all()
            continue
        if temperature == 0:
            assert ids == filtered(logits[row], 1.0, 1, 1.0, 0.0)
            continue
        # Where the mass, or the ratio to the best, is at the border but for rounding: either.
        nearby = [
            filtered(logits[row], temperature, top_k, min(top_p * (1 + p), 1.0), min_p * (1 + m))
            for p in (-1e-12, 0, 1e-12)
            for m in (-1e-12, 0, 1e-12)
        ]
        kept = [i for i in ids if np.exp((logits[row, i] - logits[row].max()) / temperature) > 0]
        assert kept in nearby


def test_forced_ids_share_a_nucleus(whole: Whole) -> None:
    """Their log Z is that of one, in float64."""
    forced = Constraints(biased=[3, 8], bias=[3e38, 3e38])
    for head in ("sketch", "full", "screen"):
        filters = 1.0, 0, 0.99, 0.0
        lists = listed(whole(300, False), head, make_hidden(2, 8), filters, forced.for_rows(2))
        assert rows_of(lists) == [[3, 8]] * 2


@pytest.mark.parametrize("constraints", [None, Constraints(banned=[7, 200])])
def test_filters_need_a_head_that_proves(whole: Whole, constraints: Constraints | None) -> None:
    decoder, hidden_states = whole(300, False), make_hidden(4, 8)
    options: Any = {"seeds": range(4), "top_p": 0.8, "min_p": 0.01, "constraints": constraints}
    full, bounded, screen = (
        decoder.sample(hidden_states, 40, head=head, **options)
        for head in ("full", "sketch", "screen")
    )
    np.testing.assert_array_equal(screen.ids, full.ids)
    np.testing.assert_array_equal(screen.log_probs, bounded.log_probs)
    assert screen.answer.proven.all()
    assert screen.answer.fallback.all()
    assert not bounded.answer.fallback.any()


def test_without_a_sketch_all_logits_are_drawn_from(tmp_path: Any) -> None:
    decoder = LocalDecoder(open_index(write_model(tmp_path)))
    assert "sketch" not in decoder.index.heads
    name = next(name for name in decoder.index.heads if name != "full")
    asked: Any = {"seeds": 1, "top_p": 0.9}
    hidden_states = make_hidden(4, decoder.index.dim, scale=0.2)
    reply, full = (decoder.sample(hidden_states, 5, head=head, **asked) for head in (name, "full"))
    np.testing.assert_array_equal(reply.ids, full.ids)
    assert reply.answer.fallback.all()
