from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import IndexUnreadable, InvalidRequest
from logitsieve.api.results import Answer
from logitsieve.decoding import LocalDecoder, answers_on, measured_elsewhere
from logitsieve.evaluation import cpu_name
from logitsieve.index import open_index
from tests.server.running import MEASURED, calibration, entries, write_model
from tests.synthetic import make_hidden


def opened(
    folder: Path, kernel_cache: Path, measured: Any = MEASURED, **target: float
) -> LocalDecoder:
    config = {"target_precision": target} if target else {}
    path = write_model(folder, calibration=measured, config=config)
    return LocalDecoder(open_index(path, kernel_cache=kernel_cache))


def used(answer: Answer) -> tuple[str, dict[str, float]]:
    """Head and probes; other knobs stay as they are by default."""
    return answer.head, {name: answer.knobs[name] for name in answer.knobs if name == "probes"}


def test_without_a_target_the_default_head_answers_at_its_stored_knobs(
    tmp_path: Path, kernel_cache: Path
) -> None:
    decoder = opened(tmp_path, kernel_cache)
    for options in ({}, {"head": "AUTO"}, {"exact": False}):
        answer = decoder.topk(make_hidden(64), 5, **options).answer
        assert used(answer) == ("screen", {"probes": 1})


def test_the_indexs_own_target_chooses(tmp_path: Path, kernel_cache: Path) -> None:
    decoder = opened(tmp_path, kernel_cache, p1=0.95)
    assert used(decoder.topk(make_hidden(1), 1).answer) == ("screen", {"probes": 3})
    assert used(decoder.topk(make_hidden(64), 1, head="AUTO").answer) == ("exact", {})
    assert used(decoder.topk(make_hidden(1), 1, min_precision=0.9).answer)[1] == {"probes": 1}


@pytest.mark.parametrize(
    ("options", "k", "head"),
    [
        ({"min_precision": 0.99}, 5, "screen"),
        ({"min_precision": 0.991}, 5, "exact"),
        ({"min_precision": 0.1}, 11, "exact"),
        ({"min_precision": 1.0}, 1, "exact"),
        ({"exact": True}, 1, "exact"),
    ],
)
def test_an_asked_precision_chooses(
    tmp_path: Path, kernel_cache: Path, options: dict[str, Any], k: int, head: str
) -> None:
    decoder, hidden = opened(tmp_path, kernel_cache), make_hidden(1)
    for form in (hidden, hidden[0], hidden.tolist(), hidden.astype(np.float64)):
        reply = decoder.topk(form, k, **options)
        assert reply.answer.head == head
        assert reply.ids.shape == (1, k)
        if head == "exact":
            assert reply.answer.exact.all()


@pytest.mark.parametrize(
    ("options", "head"),
    [
        ({}, "certified"),
        ({"head": "AUTO"}, "certified"),
        ({"exact": False, "top_p": 0.5}, "certified"),
        ({"normalizer": "exact"}, "certified"),
        ({"knobs": {"probes": 2}}, "screen"),
        ({"head": "svd"}, "svd"),
        ({"exact": True}, "exact"),
        ({"min_precision": 0.9}, "exact"),
    ],
)
def test_draws_are_proven_unless_a_head_or_a_precision_is_named(
    decoder: LocalDecoder, options: dict[str, Any], head: str
) -> None:
    """The default head is `screen`; without a calibration a precision is met by `exact`."""
    answer = decoder.sample(make_hidden(3), seeds=1, **options).answer
    assert answer.head == head
    assert answer.exact.all() == (head in ("certified", "exact"))


@pytest.mark.parametrize("rows", [1, 64])
def test_draws_do_not_go_by_the_times_of_the_best_ids(
    tmp_path: Path, kernel_cache: Path, rows: int
) -> None:
    decoder, hidden = opened(tmp_path, kernel_cache, p1=0.9), make_hidden(rows)
    assert used(decoder.topk(hidden, 1).answer)[0] in ("screen", "exact")
    assert used(decoder.sample(hidden).answer) == ("exact", {})
    screened = decoder.sample(hidden, min_precision=0.9).answer
    assert used(screened) == (("screen", {"probes": 1}) if rows == 1 else ("exact", {}))


def test_requests_of_one_kind_share_a_point(tmp_path: Path, kernel_cache: Path) -> None:
    auto = opened(tmp_path, kernel_cache).auto
    kinds = {auto.kind(rows, k, 0.9) for rows in (1, 2) for k in (2, 5)}
    assert len(kinds) == 1
    kind = kinds.pop()
    assert auto.engine(kind, 0.9, "") is auto.engine(kind, 0.9, "")
    assert auto.kind(1, 1, None) == auto.kind(1, 300, None)


def test_an_index_that_was_not_calibrated_is_exact_when_asked(
    tmp_path: Path, kernel_cache: Path
) -> None:
    decoder = opened(tmp_path, kernel_cache, None, p1=0.95)
    assert decoder.points == ()
    assert decoder.topk(make_hidden(1), 1).answer.head == "screen"
    for options in ({"min_precision": 0.1}, {"exact": True}):
        answer = decoder.topk(make_hidden(1), 1, **options).answer
        assert answer.head == "exact"


def test_a_file_does_not_make_a_head_prove_its_answers(tmp_path: Path, kernel_cache: Path) -> None:
    points = calibration(
        entries("exact", (9, 9, 9), 1.0),
        [{**entry, "proven": True} for entry in entries("screen", (1, 1, 1), 1.0, probes=1)],
    )
    decoder = opened(tmp_path, kernel_cache, points)
    assert decoder.topk(make_hidden(1), 1, exact=True).answer.head == "exact"
    assert [point.proven for point in decoder.points] == [True, False]


def test_points_of_heads_that_are_not_here_are_left_out(tmp_path: Path, kernel_cache: Path) -> None:
    other = entries("telepathy", (0.1, 0.1, 0.1), 1.0, speed=9)
    decoder = opened(tmp_path, kernel_cache, calibration(entries("exact", (9, 9, 9), 1.0), other))
    assert [point.head for point in decoder.points] == ["exact"]


@pytest.mark.parametrize(
    "points",
    [
        calibration(entries("exact", (9, 9, 9), 1.0), entries("screen", (1, 1, 1), 1.0, speed=1)),
        calibration(entries("exact", (9, 9, 9), 1.0), entries("screen", (1, 1, 1), 1.0, probes=0)),
        {"points": 3},
    ],
)
def test_a_spoiled_calibration_is_refused(tmp_path: Path, kernel_cache: Path, points: Any) -> None:
    with pytest.raises(IndexUnreadable) as refused:
        opened(tmp_path, kernel_cache, points)
    assert refused.value.file.name == "calibration.json"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"min_precision": 0}, "min_precision"),
        ({"min_precision": None, "exact": None}, "exact"),
        ({"min_precision": 0.5, "exact": True}, "min_precision"),
        ({"exact": True, "knobs": {"probes": 1}}, "knobs"),
        ({"exact": True, "head": "screen"}, "head"),
    ],
)
def test_contradictions(tmp_path: Path, kernel_cache: Path, options: Any, field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        opened(tmp_path, kernel_cache).topk(make_hidden(1), 1, **options)
    assert refused.value.field == field


def test_where_an_index_was_measured(tmp_path: Path, kernel_cache: Path) -> None:
    assert measured_elsewhere(opened(tmp_path / "a", kernel_cache).index) == ""
    assert measured_elsewhere(opened(tmp_path / "b", kernel_cache, None).index) == ""
    other = opened(
        tmp_path / "c", kernel_cache, calibration(entries("exact", (1, 1, 1), 1), cpu="Z80")
    )
    assert measured_elsewhere(other.index) == "Z80" != cpu_name()


def test_what_was_measured_on_a_processor_was_not_measured_on_a_gpu(tmp_path: Path) -> None:
    index = open_index(write_model(tmp_path, calibration=MEASURED), device="cuda")
    assert measured_elsewhere(index) == cpu_name() != answers_on(index)
