from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitsieve.api.constraints import Constraints
from logitsieve.api.errors import InvalidRequest
from logitsieve.decoding import LocalDecoder
from logitsieve.decoding.normalizers import default_normalizer
from logitsieve.index import open_index
from tests.decoding.drawn import SIZES, Whole, constraints_of, edited_logits, softmax_of
from tests.log_z import log_z_in, present
from tests.oracle import log_probs, logits64, nearest_or_below
from tests.refusals import refused
from tests.synthetic import make_hidden, make_softmax, screen_arrays, usual_sketch, write_heads


def test_its_text_names_index_head_knobs_and_normalizer(whole: Whole) -> None:
    decoder = whole(17, False)
    name = f"{decoder.name}@{decoder.version}"
    screen, full = decoder.engine("screen", (), ""), decoder.engine("full", (), "full")
    assert repr(decoder) == f"<LocalDecoder {name}: default head screen>"
    assert repr(screen).startswith(f"<LocalEngine {name}: head=screen ")
    assert "probes=1" in repr(screen)
    assert repr(full) == f"<LocalEngine {name}: head=full, normalizer=full>"


def test_an_answer_has_the_chance_of_a_fallback_that_answered_all_of_it(tmp_path: Path) -> None:
    """If lists answered any row, nothing is promised."""
    softmax, hidden_states = make_softmax(), make_hidden(9)
    parts = {"sketch": usual_sketch(softmax), "screen": screen_arrays(softmax)}
    more: Any = {"parts": parts, "config": {"fallback": "sketch"}}
    path = write_heads(tmp_path / "lm" / "1", softmax, "sketch", "screen", **more)
    decoder = LocalDecoder(open_index(path))
    far = decoder.topk(hidden_states, 5, head="screen", knobs={"escalate": 1.0}).answer
    assert far.fallback.all()
    assert not far.proven.any()
    assert far.max_errors.tolist() == [1e-15] * 9
    near = decoder.topk(hidden_states, 5, head="screen").answer
    assert not near.fallback.any()
    assert near.max_errors.tolist() == [1.0] * 9
    assert decoder.topk(hidden_states, 5, exact=True).answer.proven.all()


@pytest.mark.parametrize("widths", [(None,), (1e-9, 1e-4, 0.05, 100.0)])
@given(
    data=st.data(),
    size=st.sampled_from(SIZES),
    tied=st.booleans(),
    rows=st.integers(1, 4),
    normalizer=st.sampled_from(["full", "sketch", None]),
)
def test_scores_are_the_log_softmax_of_what_remains_or_within_a_width(
    whole: Whole, widths: Any, data: Any, size: int, tied: bool, rows: int, normalizer: Any
) -> None:
    softmax, hidden_states, decoder = (
        softmax_of(size, tied),
        make_hidden(rows, 8),
        whole(size, tied),
    )
    constraints = data.draw(st.none() | constraints_of(size, rows))
    width = data.draw(st.sampled_from(widths))
    ids = st.lists(st.integers(0, size - 1), min_size=3, max_size=3)
    token_ids = np.array(data.draw(st.lists(ids, min_size=rows, max_size=rows)))
    logits = logits64(softmax.weight, softmax.bias, hidden_states)
    if constraints is not None:
        logits = edited_logits(softmax, hidden_states, constraints)
    asked: Any = {"constraints": constraints, "normalizer": normalizer, "width": width}
    if not np.isfinite(logits).any(axis=1).all():
        with pytest.raises(InvalidRequest, match="constraints: got nothing left in row"):
            decoder.score(hidden_states, token_ids, **asked)
        return
    token_ids[:, 0] = logits.argmax(axis=1)
    reply = decoder.score(hidden_states, token_ids, **asked)
    answer = reply.answer
    usual = default_normalizer(decoder.index) if width is None else "sketch"
    assert answer.normalizer == (normalizer or usual)
    assert answer.scanned.tolist() == [3] * rows
    true = np.take_along_axis(np.stack([log_probs(row) for row in logits]), token_ids, 1)
    assert (reply.log_probs <= 0).all()
    _, low, high = log_z_in(answer)
    log_z = logits.max(axis=1) - np.array([log_probs(row).max() for row in logits])
    assert ((low <= log_z) & (log_z <= high)).all()
    if width is None:
        assert nearest_or_below(reply.log_probs, true)[answer.proven].all()
        assert normalizer != "full" or answer.proven.all()
        return
    possible = true >= -np.finfo(np.float32).max  # float32 holds no others
    printed = np.spacing(np.abs(reply.log_probs[possible]).astype(np.float32))
    assert (np.abs(reply.log_probs[possible] - true[possible]) <= width + printed).all()
    assert (high.astype(np.float64) - low <= width + 4 * np.spacing(np.abs(high))).all()


@pytest.mark.parametrize("width", [1e-6, 0.02])
def test_a_width_is_kept_alike_in_any_batch(whole: Whole, width: float) -> None:
    decoder, hidden_states = whole(300, False), make_hidden(20, 8)
    token_ids = np.arange(60).reshape(20, 3)
    together = decoder.score(hidden_states, token_ids, width=width)
    for row in range(20):
        part = slice(row, row + 1)
        alone = decoder.score(hidden_states[part], token_ids[part], width=width)
        np.testing.assert_array_equal(alone.log_probs, together.log_probs[part])


def test_a_width_finds_log_z_for_the_other_methods(whole: Whole) -> None:
    decoder, hidden_states = whole(300, False), make_hidden(4, 8)
    wanted = present(decoder.score(hidden_states, [0] * 4, normalizer="full").answer.log_z)
    unbiased = Constraints(biased=[1], bias=[0.0])
    answers = [
        decoder.topk(hidden_states, 3, width=1e-5).answer,
        decoder.sample(hidden_states, seeds=1, width=1e-5).answer,
        decoder.sample(hidden_states, seeds=1, width=1e-5, head="screen").answer,
        decoder.topk(hidden_states, 3, width=1e-5, constraints=unbiased).answer,
    ]
    for answer in answers:
        assert answer.normalizer == "sketch"
        np.testing.assert_allclose(present(answer.log_z), wanted, atol=2e-5)
    stepped = decoder.beam_step(hidden_states, beams_in=1, beams_out=2, width=1e-5).answer
    assert stepped.normalizer == "full"
    np.testing.assert_array_equal(answers[0].proven, decoder.topk(hidden_states, 3).answer.proven)


def test_to_candidates_what_the_head_does_not_look_at_is_impossible(whole: Whole) -> None:
    decoder, hidden_states, token_ids = whole(300, False), make_hidden(2, 8), [list(range(300))] * 2
    reply = decoder.score(hidden_states, token_ids, head="screen", normalizer="candidates")
    found = decoder.index.head("screen").candidates(hidden_states, 1)
    for row in range(2):
        inside = set(found.ids[found.offsets[row] : found.offsets[row + 1]].tolist())
        assert set(np.flatnonzero(np.isfinite(reply.log_probs[row])).tolist()) == inside
    np.testing.assert_allclose(np.exp(reply.log_probs).sum(axis=1), 1, rtol=1e-5)
    assert not reply.answer.proven.any()


@pytest.mark.parametrize(
    ("token_ids", "options", "field"),
    [
        ([[17]], {}, "token_ids"),
        ([[-1]], {}, "token_ids"),
        ([[0], [1]], {}, "token_ids"),
        ([[0]], {"normalizer": "none"}, "normalizer"),
        ([[0]], {"normalizer": "none", "width": 0.1}, "normalizer"),
        ([[0]], {"normalizer": "candidates", "width": 0.1}, "width"),
        ([[0]], {"normalizer": "sampled", "width": 0.1}, "width"),
        *[([[0]], {"width": wrong}, "width") for wrong in (0, -1, np.nan, np.inf, True, "1")],
        ([[0]], {"constraints": Constraints(allowed=[])}, "constraints"),
        ([[0]], {"constraints": Constraints(allowed=[17])}, "constraints.allowed"),
    ],
)
def test_refusals(whole: Whole, token_ids: Any, options: Any, field: str) -> None:
    with refused(field):
        whole(17, False).score(make_hidden(1, 8), token_ids, **options)
