"""An engine answers as the decoder that made it, and says what it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.api.decoder import BeamOptions
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.requests import beams, sampling, score_targets
from logitsieve.decoding import LocalDecoder
from logitsieve.heads.certified import GRADES
from logitsieve.index import HeadEntry, open_index, write_index
from tests.synthetic import certified_arrays, make_hidden, make_softmax, screen_arrays

Whole = Callable[[int, bool], LocalDecoder]
HIDDEN = make_hidden(3, 8)


def test_its_text_names_index_head_knobs_and_normalizer(whole: Whole) -> None:
    decoder = whole(17, False)
    name = f"{decoder.name}@{decoder.version}"
    screen, exact = decoder.engine("screen", (), ""), decoder.engine("exact", (), "exact")
    assert repr(decoder) == f"<LocalDecoder {name}: default head screen>"
    assert repr(screen).startswith(f"<Engine {name}: head=screen ")
    assert "probes=1" in repr(screen)
    assert repr(exact) == f"<Engine {name}: head=exact, normalizer=exact>"


def test_it_answers_as_its_decoder(whole: Whole) -> None:
    decoder = whole(17, False)
    engine, options = decoder.engine("exact", (), ""), BeamOptions(eos_ids=(0,))
    how, hypotheses = sampling(3, 2, {"seeds": 5}), beams(3, None, 3, 2, options)
    pairs: list[tuple[Any, Any]] = [
        (engine.topk(HIDDEN, 4), decoder.topk(HIDDEN, 4, head="exact")),
        (
            engine.score(HIDDEN, score_targets([1, 2, 3], 3), None),
            decoder.score(HIDDEN, [1, 2, 3], head="exact"),
        ),
        (engine.sample(HIDDEN, how, None), decoder.sample(HIDDEN, 2, seeds=5, head="exact")),
        (
            engine.beam_step(HIDDEN, hypotheses, None),
            decoder.beam_step(HIDDEN, beams_in=3, beams_out=2, eos_ids=(0,), head="exact"),
        ),
    ]
    for mine, other in pairs:
        for one, two in zip(mine[:-1], other[:-1], strict=True):
            np.testing.assert_array_equal(one, two)
        assert mine.answer.normalizer == other.answer.normalizer
        np.testing.assert_array_equal(mine.answer.scanned, other.answer.scanned)


def test_an_unknown_normalizer_is_refused_when_it_is_made(whole: Whole) -> None:
    with pytest.raises(InvalidRequest, match="normalizer: got none"):
        whole(17, False).engine("exact", (), "none")


def test_an_answer_has_the_chance_of_a_fallback_that_answered_all_of_it(tmp_path: Path) -> None:
    """If lists answered any row, nothing is promised."""
    softmax, hidden = make_softmax(), make_hidden(9)
    graded = dict.fromkeys(("certified", *GRADES), HeadEntry("sketch"))
    path = write_index(
        tmp_path / "lm" / "1",
        softmax=softmax,
        parts={"sketch": certified_arrays(softmax, 16), "screen": screen_arrays(softmax)},
        heads={"exact": HeadEntry(), **graded, "screen": HeadEntry("screen")},
        default_head="screen",
        config={"fallback": "estimated"},
    )
    decoder = LocalDecoder(open_index(path))
    far = decoder.topk(hidden, 5, head="screen", knobs={"escalate": 1.0}).answer
    assert far.fallback.all()
    assert not far.exact.any()
    assert far.chances.tolist() == [1e-3] * 9
    near = decoder.topk(hidden, 5, head="screen").answer
    assert not near.fallback.any()
    assert near.chances.tolist() == [1.0] * 9
    assert decoder.topk(hidden, 5, exact=True).answer.exact.all()
