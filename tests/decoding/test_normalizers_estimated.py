from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from logitsieve.api.constraints import Constraints
from logitsieve.decoding import NORMALIZERS, LocalDecoder
from logitsieve.decoding.logit_edits import edits_of
from logitsieve.decoding.normalizers import SAMPLED, SAMPLED_SHARE, Query
from logitsieve.index import HeadEntry, open_index
from logitsieve.index_builder.fit.svd import preview_arrays
from tests.decoding.normalized import CONSTRAINTS, HIDDEN, SOFTMAX, logits_of, normalized, truth
from tests.log_z import present
from tests.oracle import log_sum_exp, logits64
from tests.synthetic import make_hidden, make_softmax, screen_arrays, write_heads

PAGE = Path(__file__).parents[2] / "docs" / "decoding.md"


@pytest.mark.parametrize("head", ["screen", "svd", "sketch"])
@pytest.mark.parametrize("constraints", CONSTRAINTS)
def test_lowrank_previews_the_others(
    decoder: LocalDecoder, constraints: str, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("logitsieve.decoding.normalizers.LOGITS_AT_ONCE", 600)  # two rows
    asked, every = CONSTRAINTS[constraints], np.tile(np.arange(300, dtype=np.int32), (4, 1))
    answering = decoder.index.head(head)
    query, lowrank = Query(decoder.index, answering, HIDDEN), cast(Any, NORMALIZERS["lowrank"])
    logits = lowrank.token_logits(query, every)[1]
    assert len([*lowrank._slices(query)]) == 2
    found, exact = answering.candidates(HIDDEN, 1), logits64(SOFTMAX.weight, SOFTMAX.bias, HIDDEN)
    rows = np.repeat(np.arange(4), np.diff(found.offsets))
    np.testing.assert_array_equal(
        logits[rows, found.ids], exact[rows, found.ids].astype(np.float32)
    )
    assert np.abs(logits - exact).max() > 0.01  # a third of the dimensions
    if asked is not None:
        edits, edited = edits_of(SOFTMAX, asked, HIDDEN), logits_of(asked)
        named = np.repeat(np.arange(4), np.diff(edits.offsets)), edits.ids
        if edits.allow_list:
            logits[:] = -np.inf
        logits[named] = edited[named]
    value = normalized(decoder, "lowrank", constraints=asked, head=head, k=1, scale=0.7).value
    wanted = np.array([log_sum_exp(row * 0.7) for row in logits])
    np.testing.assert_allclose(present(value), wanted, rtol=3e-7, atol=3e-7)


@pytest.mark.parametrize("head", ["svd", "screen"])
def test_previews_are_those_of_all_dimensions_where_all_are_kept(tmp_path: Path, head: str) -> None:
    """Beside another head, also if `svd` itself answers by fewer."""
    softmax = make_softmax(77, 20)
    parts = {"svd": preview_arrays(softmax, 20), "screen": screen_arrays(softmax)}
    entries = {"full": HeadEntry(), "screen": HeadEntry("screen")}
    entries["svd"] = HeadEntry("svd", {"width": 2.0})
    index = open_index(
        write_heads(tmp_path / "demo" / "1", softmax, "svd", parts=parts, heads=entries)
    )
    hidden_states, every = make_hidden(3, 20), np.tile(np.arange(77, dtype=np.int32), (3, 1))
    knobs = {"width": 20, "candidates": 1} if head == "svd" else {}
    query = Query(index, index.head(head, **knobs), hidden_states)
    logits = NORMALIZERS["lowrank"].token_logits(query, every)[1]
    wanted = logits64(softmax.weight, softmax.bias, hidden_states)
    np.testing.assert_allclose(logits, wanted, rtol=1e-4, atol=1e-4)


class Wide:
    """V = 4000, of which the best 128 are looked at."""

    def __init__(self, folder: Path) -> None:
        self.softmax = make_softmax(4000, 16, seed=3, scale=0.6)
        self.hidden_states = make_hidden(400, 16, seed=4)
        self.logits = logits64(self.softmax.weight, self.softmax.bias, self.hidden_states)
        parts = {"svd": preview_arrays(self.softmax, 16)}
        path = write_heads(folder / "wide" / "1", self.softmax, "svd", parts=parts)
        self.index = open_index(path)
        self.head = self.index.head("svd", width=16)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Wide:
    return Wide(tmp_path_factory.mktemp("wide"))


@pytest.mark.parametrize("scale", [0.5, 1.0, 1.2])
def test_sampled_errs_as_it_says_and_to_no_side(wide: Wide, scale: float) -> None:
    found = SAMPLED.log_z(Query(wide.index, wide.head, wide.hidden_states, scale=scale))
    log_z = np.array([log_sum_exp(row * scale) for row in wide.logits])
    off = (present(found.value) - log_z) / present(found.error)
    assert abs(off.mean()) < 4 / np.sqrt(len(off))
    assert 0.9 < off.std() < 1.2
    assert (present(found.error) > 0).all()
    assert f"k = {SAMPLED_SHARE} sqrt(V)" in PAGE.read_text("utf-8")


def test_sampled_looks_at_all_others_if_all_that_was_looked_at_is_banned(wide: Wide) -> None:
    few = wide.head.candidates(wide.hidden_states[:3], 1)
    lists, logits = np.split(few.ids, few.offsets[1:-1]), wide.logits[:3].copy()
    np.put_along_axis(logits, np.stack(lists), -np.inf, axis=1)
    banned = Constraints(banned=[ids.tolist() for ids in lists])
    edits = edits_of(wide.softmax, banned, wide.hidden_states[:3])
    for scale in (1.0, 1e3):
        found = SAMPLED.log_z(
            Query(wide.index, wide.head, wide.hidden_states[:3], edits, scale=scale)
        )
        wanted = [log_sum_exp(row * scale) for row in logits]
        np.testing.assert_allclose(present(found.value), wanted, rtol=2e-7)
        assert not present(found.error).any()


def test_sampled_depends_on_its_row_alone(wide: Wide) -> None:
    together = SAMPLED.log_z(Query(wide.index, wide.head, wide.hidden_states[:9]))
    for row in range(9):
        one = wide.hidden_states[row : row + 1]
        alone = SAMPLED.log_z(Query(wide.index, wide.head, one))
        assert present(alone.value)[0] == present(together.value)[row]


@pytest.mark.parametrize("constraints", CONSTRAINTS)
@pytest.mark.parametrize("scale", [1e-4, 1.0])
def test_sampled_errs_by_nothing_where_all_is_looked_at(
    decoder: LocalDecoder, constraints: str, scale: float
) -> None:
    asked = CONSTRAINTS[constraints]
    for head in ("screen", "sketch", "full"):
        found = normalized(decoder, "sampled", constraints=asked, head=head, scale=scale)
        assert (found.low, found.high) == (None, None)
        sure, wanted = present(found.error) == 0, truth(asked, scale)
        np.testing.assert_allclose(present(found.value)[sure], wanted[sure], rtol=3e-7, atol=3e-7)
        assert head == "screen" or sure.all()
