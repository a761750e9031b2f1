"""Draws at a grade: by default a sketch with levels may miss a row with a chance of 1e-15."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.api.constraints import Constraints
from logitsieve.api.keywords import MAX_ERROR
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from logitsieve.index.manifest import HeadEntry
from tests.log_z import present
from tests.oracle import chi_square_p, log_sum_exp, logits64, softmax
from tests.synthetic import make_hidden, make_softmax, usual_sketch, write_heads

SOFTMAX = make_softmax(2001, 192, scale=2)  # enough rows for an estimate of log Z
HIDDEN = make_hidden(5, 192, scale=0.6)
LOGITS = logits64(SOFTMAX.weight, SOFTMAX.bias, HIDDEN)
BANNED = Constraints(banned=LOGITS.argmax(axis=1)[:, None].tolist())

PLAIN: list[dict[str, Any]] = [{}, {"temperature": 0.8}, {"temperature": 2.0}]
LISTED: list[dict[str, Any]] = [{"top_k": 50, "temperature": 0.8}, {"min_p": 0.05}]
PASSED: list[dict[str, Any]] = [  # that need a pass over W
    {"top_p": 0.9},
    {"top_p": 0.7, "min_p": 0.001},
    {"temperature": 0.05},
    {"constraints": BANNED},
]


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory, kernel_cache: Path) -> LocalDecoder:
    parts = {"sketch": usual_sketch(SOFTMAX, 16)}
    heads = {"exact": HeadEntry(), "sketch": HeadEntry("sketch")}
    path = tmp_path_factory.mktemp("graded") / "lm" / "1"
    write_heads(path, SOFTMAX, parts=parts, heads=heads, default_head="exact")
    return LocalDecoder(open_index(path, kernel_cache=kernel_cache))


@pytest.mark.parametrize("options", [*PLAIN, *LISTED, *PASSED], ids=str)
@pytest.mark.parametrize("samples", [1, 5])
@pytest.mark.parametrize("log_probs", [True, False])
def test_draws_at_a_grade_are_those_of_exact(
    graded: LocalDecoder, options: dict[str, Any], samples: int, log_probs: bool
) -> None:
    asked: dict[str, Any] = {"seeds": range(5), "step": 3, "log_probs": log_probs, **options}
    wanted = graded.sample(HIDDEN, samples, head="exact", **asked)
    for target in ({}, {"max_error": 1e-3}, {"max_error": 0.0}, {"exact": True}):
        reply = graded.sample(HIDDEN, samples, **asked, **target)
        np.testing.assert_array_equal(reply.ids, wanted.ids)
        proven = target in ({"max_error": 0.0}, {"exact": True})
        assert reply.answer.exact.all() or not proven
        most = 0.0 if proven else target.get("max_error", MAX_ERROR)
        assert (reply.answer.max_errors <= most).all()
        if log_probs:
            error = 0.0 if reply.answer.log_z_error is None else reply.answer.log_z_error
            assert (np.abs(reply.answer.log_z - wanted.answer.log_z) <= 0.1 + 5 * error).all()


@pytest.mark.parametrize("options", PLAIN, ids=str)
def test_log_z_of_a_graded_draw_is_an_estimate(
    graded: LocalDecoder, options: dict[str, Any]
) -> None:
    reply = graded.sample(HIDDEN, seeds=1, **options)
    answer, scale = reply.answer, 1.0 / options.get("temperature", 1.0)
    assert (answer.head, answer.normalizer, answer.max_error) == ("sketch", "approximate", 1e-15)
    assert not answer.exact.any()
    assert (answer.log_z_low, answer.log_z_high) == (None, None)
    assert (present(answer.log_z_error) > 0).all()
    assert (answer.scanned < SOFTMAX.vocab_size).all()
    true = np.array([log_sum_exp(scale * row) for row in LOGITS])
    off = present(answer.log_z) - true
    assert np.abs(off).max() < 0.1
    chosen = scale * np.take_along_axis(LOGITS, reply.ids, axis=1)
    np.testing.assert_allclose(reply.log_probs, chosen - present(answer.log_z)[:, None], atol=1e-5)
    assert (reply.log_probs <= 0).all()


@pytest.mark.parametrize(
    "asked", [{"exact": True}, {"max_error": 0.0}, {"width": 1e-3}, {"normalizer": "sketch"}]
)
def test_a_proof_is_asked_for(graded: LocalDecoder, asked: dict[str, Any]) -> None:
    answer = graded.sample(HIDDEN, seeds=1, **asked).answer
    assert answer.exact.all()
    assert (answer.log_z_error, answer.normalizer) == (None, asked.get("normalizer", "sketch"))
    spans = present(answer.log_z_high) - present(answer.log_z_low)
    assert (spans <= asked.get("width", 0.1) + 1e-5).all()


def test_graded_draws_follow_the_softmax(graded: LocalDecoder) -> None:
    same = np.repeat(HIDDEN[:1], 4000, axis=0)
    reply = graded.sample(same, 2, seeds=7, temperature=0.8)
    assert reply.answer.normalizer == "approximate"
    counts = np.bincount(reply.ids.ravel(), minlength=SOFTMAX.vocab_size)
    assert chi_square_p(counts, softmax(LOGITS[0], 0.8)) > 1e-3
