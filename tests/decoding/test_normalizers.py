from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.api.keywords import NORMALIZER_CODES
from logitsieve.decoding import NORMALIZERS, LocalDecoder
from logitsieve.decoding.logit_edits import edits_of
from logitsieve.decoding.normalizers import FULL, Query
from logitsieve.index import open_index
from tests.decoding.normalized import (
    CONSTRAINTS,
    HIDDEN,
    SCALES,
    SOFTMAX,
    logits_of,
    normalized,
    truth,
)
from tests.log_z import in_bounds, present
from tests.oracle import log_sum_exp
from tests.refusals import refused
from tests.server.running import write_model
from tests.synthetic import make_hidden

ROOT = Path(__file__).parents[2]
inf = np.float32(np.inf)


@pytest.mark.parametrize("normalizer", ["lowrank", "candidates"])
@pytest.mark.parametrize("constraints", CONSTRAINTS)
def test_all_ids_sum_to_one(decoder: LocalDecoder, constraints: str, normalizer: Any) -> None:
    """test_engine.py has the other normalizers."""
    asked, every = CONSTRAINTS[constraints], np.tile(np.arange(300), (4, 1))
    reply = decoder.score(HIDDEN, every, constraints=asked, normalizer=normalizer)
    total = np.exp(reply.log_probs.astype(np.float64)).sum(axis=1)
    if (normalizer, constraints) != ("candidates", "one left"):  # which is no candidate
        np.testing.assert_allclose(total, 1, rtol=3e-6)


def test_what_a_normalizer_needs_is_named(tmp_path: Path) -> None:
    decoder = LocalDecoder(open_index(write_model(tmp_path)))
    names: list[Any] = ["lowrank", "sketch"]
    for name in names:
        with refused("normalizer", "the index has full, screen"):
            decoder.topk(make_hidden(1), 1, normalizer=name)


@pytest.mark.parametrize("name", ["none", 3])
def test_an_unknown_one_names_those_that_are_built(decoder: LocalDecoder, name: Any) -> None:
    with refused("normalizer", "candidates, lowrank, sampled"):
        decoder.topk(make_hidden(1), 1, normalizer=name)


def test_codes_and_the_page_have_every_normalizer_and_no_other() -> None:
    assert NORMALIZERS.keys() == NORMALIZER_CODES.keys()
    page = (ROOT / "docs/decoding.md").read_text(encoding="utf-8")
    assert [name for name in NORMALIZERS if f"`{name}`" not in page] == []


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("constraints", CONSTRAINTS)
def test_exact_is_over_the_vocabulary_whatever_head_answers(
    decoder: LocalDecoder, constraints: str, scale: float
) -> None:
    asked = CONSTRAINTS[constraints]
    for head in decoder.index.heads:
        found = normalized(decoder, "full", constraints=asked, head=head, scale=scale)
        value, low, high = in_bounds(found.value, found.low, found.high)
        wanted = truth(asked, scale)
        np.testing.assert_allclose(value, wanted, rtol=1e-7, atol=1e-12)
        assert ((low <= wanted) & (wanted <= high)).all()
        assert (high <= np.nextafter(np.nextafter(low, inf), inf)).all()


def test_slices_do_not_change_a_row(decoder: LocalDecoder) -> None:
    """One row in each slice, and all in one."""
    hidden_states = np.repeat(HIDDEN, 3000, axis=0)
    full = decoder.index.head("full")
    many = FULL.log_z(Query(decoder.index, full, hidden_states)).value
    few = FULL.log_z(Query(decoder.index, full, HIDDEN)).value
    np.testing.assert_array_equal(many, np.repeat(few, 3000))


@pytest.mark.parametrize("scale", [0.5, 1.0, 2.0, 1e5])
@pytest.mark.parametrize("constraints", CONSTRAINTS)
def test_candidates_is_over_what_was_scanned_and_what_was_edited(
    decoder: LocalDecoder, constraints: str, scale: float
) -> None:
    asked = CONSTRAINTS[constraints]
    value = present(normalized(decoder, "candidates", constraints=asked, scale=scale).value)
    found = decoder.index.head("screen").candidates(HIDDEN, 5)
    edits = None if asked is None else edits_of(SOFTMAX, asked, HIDDEN)
    for row, logits in enumerate(logits_of(asked)):
        inside = set(found.ids[found.offsets[row] : found.offsets[row + 1]].tolist())
        if edits is not None:
            inside |= set(edits.ids[edits.offsets[row] : edits.offsets[row + 1]].tolist())
        open_ = [i for i in sorted(inside) if logits[i] > -np.inf]
        if not open_:
            assert value[row] == -np.inf
            continue
        wanted = log_sum_exp(logits[open_] * scale)
        assert value[row] == pytest.approx(wanted, rel=3e-7, abs=3e-7)
