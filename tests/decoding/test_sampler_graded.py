"""Draws at a grade: by default a sketch may miss a row with a chance of 1e-15."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from logitsieve.api.constraints import Constraints
from logitsieve.api.keywords import MAX_ERROR
from logitsieve.api.requests import Sampling
from logitsieve.decoding import LocalDecoder, sampler
from logitsieve.decoding.normalizers import Query
from logitsieve.heads.full import FullHead
from logitsieve.heads.sketch import SketchHead
from logitsieve.index import open_index
from logitsieve.index.manifest import HeadEntry
from tests.log_z import present
from tests.oracle import filtered, log_sum_exp, logits64
from tests.synthetic import make_hidden, make_softmax, usual_sketch, write_heads

SOFTMAX = make_softmax(2001, 192, scale=2)  # enough rows for an estimate of log Z
HIDDEN = make_hidden(5, 192, scale=0.6)
LOGITS = logits64(SOFTMAX.weight, SOFTMAX.bias, HIDDEN)
BANNED = Constraints(banned=LOGITS.argmax(axis=1)[:, None].tolist())

PLAIN: list[dict[str, Any]] = [
    {},
    {"temperature": 0.8},
    {"temperature": 2.0},
    {"temperature": 0.05},
]
LISTED: list[dict[str, Any]] = [
    {"top_k": 50, "temperature": 0.8},
    {"top_k": 50, "top_p": 0.8, "min_p": 0.1},
    {"min_p": 0.05},
    {"min_p": 0.01, "temperature": 1.5},
]
NUCLEI: list[dict[str, Any]] = [{"top_p": 0.9}, {"top_p": 0.95, "temperature": 0.6}]
FULL: dict[str, Any] = {"head": "full"}
OTHERS: list[dict[str, Any]] = [
    {"top_p": 0.7, "min_p": 0.001},
    {"min_p": 0.001},
    {"constraints": BANNED},
    {"constraints": BANNED, "min_p": 0.1},
]


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory, kernel_cache: Path) -> LocalDecoder:
    parts = {"sketch": usual_sketch(SOFTMAX)}
    heads = {"full": HeadEntry(), "sketch": HeadEntry("sketch")}
    path = tmp_path_factory.mktemp("graded") / "lm" / "1"
    write_heads(path, SOFTMAX, parts=parts, heads=heads, default_head="full")
    return LocalDecoder(open_index(path, kernel_cache=kernel_cache))


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw by the best ids however small the softmax and many the samples."""
    monkeypatch.setattr(sampler, "PRODUCTS_A_DRAW", 0)
    monkeypatch.setattr(sampler, "LEAST_PRODUCTS", 0)
    monkeypatch.setattr(sampler, "MOST_OPEN", np.inf)


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("options", [*PLAIN, *LISTED, *NUCLEI, *OTHERS], ids=str)
@pytest.mark.parametrize("samples", [1, 5])
@pytest.mark.parametrize("log_probs", [True, False])
def test_draws_at_a_grade_are_those_of_exact(
    graded: LocalDecoder, options: dict[str, Any], samples: int, log_probs: bool
) -> None:
    asked: dict[str, Any] = {"seeds": range(5), "step": 3, "log_probs": log_probs, **options}
    wanted = graded.sample(HIDDEN, samples, head="full", **asked)
    for spec in ({}, {"max_error": 1e-3}, {"max_error": 0.0}, {"exact": True}):
        reply = graded.sample(HIDDEN, samples, **asked, **spec)
        np.testing.assert_array_equal(reply.ids, wanted.ids)
        proven = spec in ({"max_error": 0.0}, {"exact": True})
        assert reply.answer.proven.all() or not proven
        most = 0.0 if proven else spec.get("max_error", MAX_ERROR)
        assert (reply.answer.max_errors <= most).all()
        if log_probs:
            error = reply.answer.log_z_error
            assert error is None or not proven
            off = np.abs(present(reply.answer.log_z) - present(wanted.answer.log_z))
            assert (off <= 1e-5 + (0.0 if error is None else 0.03 + 5 * error)).all()
            np.testing.assert_allclose(
                reply.log_probs, wanted.log_probs, rtol=1e-6, atol=1e-5 + off.max()
            )


@pytest.mark.parametrize("options", PLAIN, ids=str)
def test_log_z_of_a_graded_draw_is_an_estimate(
    graded: LocalDecoder, options: dict[str, Any]
) -> None:
    """The colder, the more of Z is exact logits."""
    reply = graded.sample(HIDDEN, seeds=1, **options)
    answer, scale = reply.answer, 1.0 / options.get("temperature", 1.0)
    assert (answer.head, answer.normalizer, answer.max_error) == ("sketch", "approximate", 1e-15)
    assert not answer.proven.any()
    assert (answer.log_z_low, answer.log_z_high) == (None, None)
    assert (answer.scanned < SOFTMAX.vocab_size).all()
    true = np.array([log_sum_exp(scale * row) for row in LOGITS])
    off = np.abs(present(answer.log_z) - true)
    assert off.max() <= (0.02 if scale <= 1.0 else 2e-3)
    told = present(answer.log_z_error)
    assert (told > 0).all()
    assert (off <= 12 * told + 1e-6 * np.abs(true)).all()
    chosen = scale * np.take_along_axis(LOGITS, reply.ids, axis=1)
    spare = 1e-5 + 1e-7 * np.abs(true).max()  # log Z is rounded to float32
    np.testing.assert_allclose(reply.log_probs, chosen - present(answer.log_z)[:, None], atol=spare)
    assert (reply.log_probs <= 0).all()


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("options", NUCLEI, ids=str)
def test_log_z_of_a_nucleus_is_an_estimate_unless_a_pass_finds_it(
    graded: LocalDecoder, options: dict[str, Any]
) -> None:
    hidden_states = np.concatenate([make_hidden(20, 192, scale=each) for each in (0.05, 0.6)])
    reply = graded.sample(hidden_states, seeds=1, **options)
    answer, temperature = reply.answer, options.get("temperature", 1.0)
    assert answer.normalizer == "approximate"
    assert 0 < answer.proven.sum() < len(hidden_states)
    logits = logits64(SOFTMAX.weight, SOFTMAX.bias, hidden_states)
    for row, values in enumerate(logits):
        left = filtered(values, temperature, 0, options["top_p"], 0.0)
        assert reply.ids[row, 0] in left
        off = abs(present(answer.log_z)[row] - log_sum_exp(values[left] / temperature))
        assert off <= (sampler.NUCLEUS_WIDTH if answer.proven[row] else 0.02)
        assert (present(answer.log_z_error)[row] == 0) == answer.proven[row]


@pytest.mark.parametrize(
    ("asked", "normalizer"),
    [
        ({"exact": True}, "full"),
        ({"max_error": 0.0}, "sketch"),
        ({"width": 1e-3}, "sketch"),
        ({"normalizer": "sketch"}, "sketch"),
    ],
    ids=str,
)
def test_a_proof_is_asked_for(graded: LocalDecoder, asked: dict[str, Any], normalizer: str) -> None:
    answer = graded.sample(HIDDEN, seeds=1, **asked).answer
    assert answer.proven.all()
    assert (answer.log_z_error, answer.normalizer) == (None, normalizer)
    spans = present(answer.log_z_high) - present(answer.log_z_low)
    assert (spans <= asked.get("width", 0.1) + 1e-5).all()


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("log_probs", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        *({"temperature": each} for each in (0.3, 0.8, 1.0, 2.0)),
        {"top_k": 20},
        {"top_p": 0.9, "temperature": 0.8},
        {"min_p": 0.02},
        {"min_p": 0.02, "top_p": 0.8},
    ],
    ids=str,
)
def test_thousands_of_graded_draws_are_those_of_exact(
    graded: LocalDecoder, options: dict[str, Any], log_probs: bool
) -> None:
    """Each row draws few, so that its noise tells which of the best ids it needs."""
    same, asked = np.repeat(HIDDEN[:1], 2000, axis=0), {"log_probs": log_probs, **options}
    found, wanted = (graded.sample(same, 2, seeds=7, **spec, **asked) for spec in ({}, FULL))
    np.testing.assert_array_equal(found.ids, wanted.ids)


@pytest.mark.parametrize("k", [1, 32])
def test_rows_above_a_floor_are_complete(graded: LocalDecoder, k: int) -> None:
    """A floor of noise is at or above the value that a draw needs, one of min-p where it ends."""
    head, seeds = cast(SketchHead, graded.index.head("sketch")), np.arange(5, dtype=np.uint64)
    for how, scale in ((Sampling(2, seeds), 1.0), (Sampling(0, seeds, min_p=0.1), 1.25)):
        best, floors = head.needed(HIDDEN, k, how, scale, summed=False)
        for row, logits in enumerate(LOGITS):
            order = np.argsort(-logits, kind="stable")[:k]
            complete = logits[order] >= floors[row]
            np.testing.assert_array_equal(best.ids[row, : complete.sum()], order[complete])
            assert (np.diff(best.logits[row]) <= 0).all()
        assert not best.proven.any()
        if how.min_p:
            wanted = LOGITS.max(axis=1) + np.log(how.min_p) / scale
            np.testing.assert_allclose(floors, wanted, atol=1e-5)
    assert (head.needed(HIDDEN, k, Sampling(0, seeds), summed=False)[1] == -np.inf).all()


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("many", [16, 512])
@pytest.mark.parametrize("options", [*NUCLEI, {"top_p": 0.5}, {"top_p": 0.9, "min_p": 0.001}])
def test_a_rough_interval_decides_draws_that_the_best_ids_leave_open(
    graded: LocalDecoder, options: dict[str, Any], many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From narrow nuclei to those beyond the best ids: the draws of a full sort of all logits."""
    decided: list[int] = []

    def counted(query: Query, how: Sampling) -> sampler.Draws:
        found = by_interval(query, how)
        decided.append(len(found.ids))
        return found

    by_interval = sampler._by_interval
    monkeypatch.setattr(sampler, "_by_interval", counted)
    monkeypatch.setattr(sampler, "MANY", many)
    scales = (0.02, 0.1, 0.3, 0.6, 1.0)
    hidden_states = np.concatenate([make_hidden(40, 192, scale=each) for each in scales])
    seeds = np.arange(200, dtype=np.uint64)
    how = Sampling(1, seeds, **options)
    wanted = FullHead(SOFTMAX).draw(hidden_states, how, how.scale).ids
    for head in ("full", "sketch"):
        found = graded.sample(hidden_states, seeds=seeds, head=head, log_probs=False, **options).ids
        np.testing.assert_array_equal(found, wanted)
    assert len(decided) == 2
    assert min(decided) > 5
