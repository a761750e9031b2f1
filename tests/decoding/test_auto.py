from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from logitsieve.api.constraints import Constraints
from logitsieve.api.errors import IndexUnreadable
from logitsieve.api.keywords import ModelSpec
from logitsieve.api.results import Answer
from logitsieve.decoding import LocalDecoder, answers_on, measured_elsewhere
from logitsieve.decoding.auto import Auto
from logitsieve.evaluation import cpu_name
from logitsieve.evaluation.operating_points import BEYOND, KS, OperatingPoint, undominated
from logitsieve.heads._base.kernel_head import ANY_ROWS
from logitsieve.index import open_index
from logitsieve.index.manifest import HeadEntry
from tests.evaluation.test_operating_points import (
    BATCHED,
    FAST,
    FULL,
    POINTS,
    PROOF,
    WIDE,
    make_point,
)
from tests.refusals import refused
from tests.server.running import MEASURED, calibration, entries, write_model
from tests.synthetic import make_hidden, make_softmax, usual_sketch, write_heads

USUAL = make_point("sketch", (15, 15, 15), (0.9997, 0.9997, 0.9997), max_error=1e-15)


def auto(
    points: list[OperatingPoint], target: dict[int, float] | None = None, stored: Any = FAST
) -> Auto:
    return Auto(points, target or {}, 300, stored.setting, ("full", "sketch", "screen"))


def choose(
    over: Auto, batch: int, k: int, precision: float | None, refuted: Any = None, **more: float
) -> OperatingPoint | None:
    """The point of the choice; None where it was not measured."""
    return over.measured.get(over.choose(batch, k, precision, refuted=refuted, **more))


@pytest.mark.parametrize(
    ("batch", "k", "precision", "expected"),
    [
        *((1, 1, 0.98, FAST), (1, 1, 0.981, WIDE), (1, 5, 0.96, WIDE), (8, 10, 0.9, FAST)),
        *((64, 1, 0.99, BATCHED), (1, 1, 0.9999, PROOF), (64, 1, 0.9999, FULL)),
        *((1, 1, 1.0, PROOF), (1, BEYOND, 0.5, PROOF), (64, BEYOND, 1e-9, FULL)),
    ],
)
def test_the_cheapest_point_that_is_precise_enough(
    batch: int, k: int, precision: float, expected: OperatingPoint
) -> None:
    assert choose(auto(POINTS), batch, k, precision) is expected


def test_a_target_of_the_index_is_met_whole_or_by_the_fastest_proof() -> None:
    chooser = auto(POINTS, {1: 0.9, 5: 0.99})
    assert [choose(chooser, 1, k, None) for k in (*KS, BEYOND)] == [WIDE] * 4
    assert choose(chooser, 64, 1, None) is BATCHED
    assert choose(auto(POINTS, {5: 1.0}), 1, 1, None) is PROOF
    assert choose(auto([FULL, FAST, PROOF], {1: 0.999}), 1, 1, None) is PROOF
    assert choose(auto([FULL, FAST, PROOF], {1: 0.999}), 64, 1, None) is FULL
    over = auto([FULL, PROOF, USUAL], {1: 0.999})
    assert choose(over, 1, 1, 0.999) is choose(over, 1, 1, None) is USUAL
    assert choose(over, 1, 1, 0.9999) is choose(over, 1, 1, 1.0) is PROOF  # exact=True is 1.0


def test_without_a_target_a_point_within_the_largest_error_answers() -> None:
    loose = make_point("sketch", (12, 12, 12), (0.9997,) * 3, max_error=1e-3)
    over = auto([FULL, FAST, PROOF, loose, USUAL])
    assert choose(over, 1, 1, None) is choose(over, 1, 1, None, max_error=1e-15) is USUAL
    assert choose(over, 1, 1, None, max_error=0.0) is choose(over, 1, 1, 1.0) is PROOF
    assert choose(over, 1, 1, None, max_error=1e-16) is PROOF
    assert choose(over, 1, 1, None, max_error=0.5) is loose
    targeted = auto([FULL, FAST, PROOF, USUAL], {1: 0.9})
    assert choose(targeted, 1, 1, None) is FAST
    assert choose(targeted, 1, 1, None, max_error=0.1) is USUAL
    assert choose(auto([FULL, FAST], stored=FAST), 1, 1, None) is FULL


def test_a_sketch_that_rules_out_few_rows_is_slower_than_all() -> None:
    slow = make_point("sketch", (120, 110, 90), (1, 1, 1), max_error=0)
    for precision in (None, 0.5, 1.0):
        assert choose(auto([FULL, slow], stored=slow), 1, 1, precision) is FULL
    assert choose(auto([FULL, PROOF], stored=PROOF), 64, 1, None) is FULL
    assert auto([FULL, slow]).drawing(1, None) == ("full", ())
    near = replace(slow, us_per_row={1: 110, 8: 110, 64: 90})  # one noisy measurement
    for chosen in (choose(auto([FULL, near]), 1, 1, 1.0), choose(auto([FULL, near]), 8, 1, None)):
        assert chosen is near
    assert auto([FULL, near]).drawing(1, None) == ("sketch", (("max_error", 1e-15),))
    assert auto([FULL, near]).drawing(1, 0.0) == ("sketch", (("max_error", 0.0),))
    unproven = make_point("screen", (105, 90, 90), (1, 1, 1))
    assert choose(auto([FULL, near, unproven]), 1, 1, 0.5) is near
    assert choose(auto([FULL, near, unproven]), 8, 1, 0.5) is unproven
    many = replace(near, candidates={1: 151.0, 8: 300.0})  # of 300: by the code of `full`
    assert choose(auto([FULL, many]), 1, 1, 1.0) is FULL
    assert auto([FULL, USUAL, PROOF]).drawing(1, 1e-3) == ("sketch", (("max_error", 1e-3),))
    mixed = auto([FULL, replace(slow, us_per_row={1: 120, 2: 50})])
    assert [mixed.drawing(rows, 0.1)[0] for rows in (1, 2)] == ["full", "sketch"]
    drawn = replace(USUAL, draw_us={1: 130.0, 8: 90.0})  # of many best ids
    draws = auto([replace(FULL, draw_us={1: 101.0, 8: 101.0}), drawn])
    assert choose(draws, 1, 1, None) is drawn
    assert [draws.drawing(rows, None)[0] for rows in (1, 8)] == ["full", "sketch"]
    graded = auto([FULL, slow, USUAL])  # slow with proofs
    assert [graded.drawing(1, most)[0] for most in (0.0, None)] == ["full", "sketch"]


def test_a_point_that_live_answers_refute_is_left_for_the_fastest_proof() -> None:
    def refuted(point: OperatingPoint, goal: Mapping[int, float]) -> bool:
        return point is FAST and goal[1] > 0.9

    assert choose(auto(POINTS), 1, 1, 0.95, refuted) is PROOF
    assert choose(auto(POINTS), 64, 1, 0.95, refuted) is BATCHED
    assert choose(auto(POINTS), 1, 1, 0.9, refuted) is FAST


def test_what_was_not_measured() -> None:
    assert auto([]).choose(auto([]).batch(100), 1, 0.5) == ("full", ())
    assert auto([]).choose(1, 0, None) == FAST.setting
    assert auto([]).choose(1, 0, None, 1e-3) == ("sketch", (("max_error", 1e-3),))
    assert auto([]).drawing(1, None) == ("sketch", (("max_error", 1e-15),))
    assert Auto([], {}, 300, heads=("full",)).choose(1, 0, None, 0.1) == ("full", ())
    assert auto([]).batches == (1,)


def test_luck_is_no_proof_and_equal_times_are_settled_by_one() -> None:
    lucky = make_point("screen", (1, 1, 1), (1.0, 1.0, 1.0))
    assert choose(auto([lucky, FULL]), 1, 1, 1.0) is FULL
    assert choose(auto([lucky, FULL]), 1, 1, 0.99999) is lucky
    equal = make_point("screen", (20, 22, 50))
    assert choose(auto([equal, PROOF]), 1, 1, 0.5) is PROOF
    one = make_point("full", max_error=0)
    few = replace(one, us_per_row={8: 0.5})
    assert choose(auto([one, few]), 64, 1, 1.0) is few


def points_strategy() -> st.SearchStrategy[list[OperatingPoint]]:
    few = st.sampled_from([1.0, 2.0, 3.0])
    low = st.sampled_from([0.5, 0.9, 0.99])
    us, sure = st.tuples(few, few, few), partial(make_point, "sketch", max_error=0)
    unproven = st.builds(make_point, us=us, low=st.tuples(low, low, low), probes=few)
    proven = st.builds(sure, us=us, low=st.just((1, 1, 1)), probes=few)
    points = st.one_of(unproven, proven)
    return st.lists(points, min_size=1, max_size=12, unique_by=lambda point: point.setting)


@given(points_strategy(), st.sampled_from([0.5, 0.9, 0.95, 1.0]))
def test_dominated_points_are_dispensable(points: list[OperatingPoint], precision: float) -> None:
    whole, kept = auto(points), auto(undominated(points))
    for batch in (1, 8, 64):
        for k in (*KS, BEYOND):
            one, other = (choose(each, batch, k, precision) for each in (whole, kept))
            assert (one is None) == (other is None)
            if one is not None and other is not None:
                assert other.us_at(batch) == one.us_at(batch)
                assert other.meets(precision, k)


@pytest.mark.parametrize(
    ("sketch", "most"),
    [
        # The largest measured batch at which it is faster, and the sizes that count as that.
        *(((1, 1, 9), 22), ((1, 9, 9), 2), ((1, 9, 1), ANY_ROWS), ((9, 1, 9), 22)),
        ((9, 9, 9), 1),  # never less than one row
    ],
)
def test_a_named_sketch_leaves_calls_of_many_rows_to_exact(
    sketch: tuple[float, ...], most: int, tmp_path: Path
) -> None:
    """As the calibration of this machine says; a grade counts as the next stricter one."""
    points = [entries("full", (9, 9, 9), 1.0), entries("sketch", (1, 1, 1), 1.0, max_error=1e-3)]
    points.append(entries("sketch", sketch, 1.0, max_error=1e-15))
    softmax, hidden_states = make_softmax(), make_hidden(70)
    parts = {"sketch": usual_sketch(softmax)}
    here, other = calibration(*points), calibration(*points, cpu="another")
    paths = [
        write_heads(
            tmp_path / str(number) / "1", softmax, "sketch", parts=parts, calibration=measured
        )
        for number, measured in enumerate((here, other, None))
    ]
    decoder, *others = (LocalDecoder(open_index(path)) for path in paths)
    for max_error, limit in ((1e-15, most), (1e-9, most), (1e-3, ANY_ROWS), (0, ANY_ROWS)):
        spec: ModelSpec = {"head": "sketch", "max_error": max_error}
        assert decoder.engine_for(spec, 1, 5).answering.most_rows == limit
        for rows in (1, 2, 3, 22, 23, 70):
            top = decoder.topk(hidden_states[:rows], 5, **spec)
            alone = [decoder.topk(row, 5, **spec) for row in hidden_states[:rows]]
            assert top.ids.tolist() == [one.ids[0].tolist() for one in alone]
            assert top.answer.head == "sketch"
    for each in others:
        assert each.engine_for({"head": "sketch"}, 1, 5).answering.most_rows == ANY_ROWS


def opened(
    folder: Path, kernel_cache: Path, measured: Any = MEASURED, **target: float
) -> LocalDecoder:
    config = {"target_precision": target} if target else {}
    place = folder / str(len(list(folder.glob("*"))))
    path = write_model(place, calibration=measured, config=config)
    return LocalDecoder(open_index(path, kernel_cache=kernel_cache))


def used(answer: Answer) -> tuple[str, dict[str, float]]:
    """Head and probes; other knobs stay as they are by default."""
    return answer.head, {name: answer.knobs[name] for name in answer.knobs if name == "probes"}


def test_auto_answers_by_what_was_measured(tmp_path: Path, kernel_cache: Path) -> None:
    decoder = opened(tmp_path, kernel_cache)
    for options in ({}, {"head": "AUTO"}, {"exact": False}, {"max_error": 0}):
        assert used(decoder.topk(make_hidden(1), 5, **options).answer) == ("full", {})
    decoder = opened(tmp_path, kernel_cache, p1=0.9)
    for options in ({}, {"head": "AUTO"}, {"exact": False}):
        answer = decoder.topk(make_hidden(1), 5, **options).answer
        assert used(answer) == ("screen", {"probes": 1})
        assert used(decoder.topk(make_hidden(64), 5, **options).answer) == ("full", {})
    asked: ModelSpec = {"min_precision": 0.9}
    engines = {decoder.engine_for(asked, rows, k) for rows in (1, 2) for k in (2, 5)}
    assert len(engines) == 1
    assert decoder.engine_for({}, 1, 1) is decoder.engine_for({}, 1, 300)
    decoder = opened(tmp_path, kernel_cache, p1=0.95)
    assert used(decoder.topk(make_hidden(1), 1).answer) == ("screen", {"probes": 3})
    assert used(decoder.topk(make_hidden(64), 1, head="AUTO").answer) == ("full", {})
    assert used(decoder.topk(make_hidden(1), 1, min_precision=0.9).answer)[1] == {"probes": 1}
    decoder = opened(tmp_path, kernel_cache, None, p1=0.95)
    assert decoder.points == ()
    assert decoder.topk(make_hidden(1), 1).answer.head == "screen"
    for spec in ({"min_precision": 0.1}, {"exact": True}):
        assert decoder.topk(make_hidden(1), 1, **spec).answer.head == "full"


@pytest.mark.parametrize(
    ("options", "k", "head"),
    [
        ({"min_precision": 0.99}, 5, "screen"),
        ({"min_precision": 0.991}, 5, "full"),
        ({"min_precision": 0.1}, 11, "full"),
        ({"min_precision": 1.0}, 1, "full"),
        ({"exact": True}, 1, "full"),
    ],
)
def test_an_asked_precision_chooses(
    tmp_path: Path, kernel_cache: Path, options: dict[str, Any], k: int, head: str
) -> None:
    reply = opened(tmp_path, kernel_cache).topk(make_hidden(1), k, **options)
    assert (reply.answer.head, reply.ids.shape) == (head, (1, k))
    assert head != "full" or reply.answer.proven.all()


@pytest.mark.parametrize(
    ("options", "head"),
    [
        ({}, "sketch"),
        ({"head": "AUTO"}, "sketch"),
        ({"exact": False, "top_p": 0.5}, "sketch"),
        ({"normalizer": "full"}, "sketch"),
        ({"knobs": {"probes": 2}}, "screen"),
        ({"head": "svd"}, "svd"),
        ({"exact": True}, "full"),
        ({"min_precision": 0.9}, "full"),
    ],
)
def test_draws_take_the_sketch_unless_a_head_or_a_precision_is_named(
    decoder: LocalDecoder, options: dict[str, Any], head: str
) -> None:
    """The default head is `screen`; without a calibration a precision is met by `full`."""
    answer = decoder.sample(make_hidden(3), seeds=1, **options).answer
    assert answer.head == head
    assert answer.proven.all() == (head in ("sketch", "full"))


@pytest.mark.parametrize(
    ("options", "head"),
    [
        ({}, "full"),
        ({"head": "AUTO", "normalizer": "full"}, "full"),
        ({"min_precision": 0.5}, "full"),
        ({"normalizer": "candidates"}, "full"),
        ({"head": "screen"}, "screen"),
        ({"constraints": Constraints(banned=[0])}, "full"),
    ],
)
def test_steps_fitted_to_ids_by_an_exact_log_z_take_its_pass_over_w(
    tmp_path: Path, kernel_cache: Path, options: dict[str, Any], head: str
) -> None:
    decoder, hidden_states = opened(tmp_path, kernel_cache), make_hidden(1)
    assert decoder.beam_step(hidden_states, beams_in=1, beams_out=1, **options).answer.head == head


@pytest.mark.parametrize("rows", [1, 64])
def test_draws_ignore_times_of_best_ids(tmp_path: Path, kernel_cache: Path, rows: int) -> None:
    decoder, hidden_states = opened(tmp_path, kernel_cache, p1=0.9), make_hidden(rows)
    assert used(decoder.topk(hidden_states, 1).answer)[0] in ("screen", "full")
    assert used(decoder.sample(hidden_states).answer) == ("full", {})
    screened = decoder.sample(hidden_states, min_precision=0.9).answer
    assert used(screened) == (("screen", {"probes": 1}) if rows == 1 else ("full", {}))


def test_draws_and_scores_need_a_precise_best_id(tmp_path: Path, kernel_cache: Path) -> None:
    screen, hidden_states = entries("screen", (1, 1, 1), 0.5, probes=1), make_hidden(1)
    for entry in screen:
        entry["precision"]["1"] = {"mean": 0.99, "low": 0.99}
    decoder = opened(tmp_path, kernel_cache, calibration(entries("full", (9, 9, 9), 1.0), screen))
    assert decoder.score(hidden_states, [0], min_precision=0.9).answer.head == "screen"
    assert decoder.sample(hidden_states, min_precision=0.9).answer.head == "screen"


def test_the_class_decides_what_a_head_proves(tmp_path: Path, kernel_cache: Path) -> None:
    points = calibration(
        entries("full", (9, 9, 9), 1.0),
        [{**entry, "max_error": 0.0} for entry in entries("screen", (1, 1, 1), 1.0, probes=1)],
    )
    decoder = opened(tmp_path, kernel_cache, points)
    assert decoder.topk(make_hidden(1), 1, exact=True).answer.head == "full"
    assert [point.proven for point in decoder.points] == [True, False]
    other = entries("telepathy", (0.1, 0.1, 0.1), 1.0, speed=9)
    decoder = opened(tmp_path, kernel_cache, calibration(entries("full", (9, 9, 9), 1.0), other))
    assert [point.head for point in decoder.points] == ["full"]


@pytest.mark.parametrize(
    "points",
    [
        calibration(entries("full", (9, 9, 9), 1.0), entries("screen", (1, 1, 1), 1.0, speed=1)),
        calibration(entries("full", (9, 9, 9), 1.0), entries("screen", (1, 1, 1), 1.0, probes=0)),
        {"points": 3},
    ],
)
def test_a_spoiled_calibration_is_refused(tmp_path: Path, kernel_cache: Path, points: Any) -> None:
    with pytest.raises(IndexUnreadable, match=r"calibration\.json"):
        opened(tmp_path, kernel_cache, points)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"min_precision": 0}, "min_precision"),
        ({"min_precision": None, "exact": None}, "exact"),
        ({"min_precision": 0.5, "exact": True}, "min_precision"),
        ({"exact": True, "knobs": {"probes": 1}}, "knobs"),
        ({"exact": True, "head": "screen"}, "head"),
        *(({"max_error": value}, "max_error") for value in (-1e-9, 1.0, nan, inf, "0", True)),
        ({"max_error": 0.1, "exact": True}, "max_error"),
        ({"max_error": 0.1, "min_precision": 0.5}, "max_error"),
        ({"max_error": 0.1, "head": "sketch", "knobs": {"max_error": 0.1}}, "max_error"),
        ({"max_error": 0.1, "head": "screen"}, "knobs.max_error"),
        ({"max_error": 0.0, "head": "full"}, "knobs.max_error"),
    ],
)
def test_contradictions(tmp_path: Path, kernel_cache: Path, options: Any, field: str) -> None:
    with refused(field):
        opened(tmp_path, kernel_cache).topk(make_hidden(1), 1, **options)


def test_where_an_index_was_measured(tmp_path: Path, kernel_cache: Path) -> None:
    assert measured_elsewhere(opened(tmp_path / "a", kernel_cache).index) == ""
    assert measured_elsewhere(opened(tmp_path / "b", kernel_cache, None).index) == ""
    measured = calibration(entries("full", (1, 1, 1), 1), cpu="Z80")
    other = opened(tmp_path / "c", kernel_cache, measured)
    assert measured_elsewhere(other.index) == "Z80" != cpu_name()
    index = open_index(write_model(tmp_path, calibration=MEASURED), device="cuda")
    assert measured_elsewhere(index) == cpu_name() != answers_on(index)


def test_beam_steps_take_the_fastest_measured_point_that_meets_the_target() -> None:
    full = make_point("full", (100, 100, 40), (1, 1, 1), max_error=0, step=(100, 90, 50))
    quick = make_point("screen", probes=1, step=(20, 20, 20), step_low=0.98)
    close = make_point("screen", probes=2, step=(30, 30, 60), step_low=0.995)
    points = [full, FAST, quick, close]
    targeted = auto(points, {1: 0.999, 10: 0.99})
    assert [targeted.stepping(n, None, None) for n in (1, 64)] == [close.setting, full.setting]
    assert targeted.stepping(1, 0.97, None) == quick.setting
    assert targeted.stepping(1, 1.0, None) == full.setting
    assert targeted.stepping(1, None, 1e-3) == full.setting  # no estimate keeps that promise
    assert auto([FAST]).stepping(1, 0.9, None) == ("full", ())


def test_without_a_target_steps_take_a_head_within_the_chance_whose_log_z_is_close() -> None:
    full = make_point("full", (100, 100, 40), (1, 1, 1), max_error=0, step=(100, 90, 50))
    screen = make_point("screen", probes=1, step=(20, 20, 20), step_low=0.999)
    loose = make_point("sketch", max_error=1e-3, step=(30, 30, 30), step_low=0.999)
    sketch = make_point("sketch", max_error=1e-15, step=(40, 40, 60), step_low=0.995)
    rough = make_point("sketch", max_error=1e-15, step=(40, 40, 40), step_low=0.98)
    points = [full, screen, loose]
    assert auto(points).stepping(1, None, None) == full.setting
    chosen = auto([*points, sketch])
    assert [chosen.stepping(n, None, None) for n in (1, 64)] == [sketch.setting, full.setting]
    assert auto([*points, rough]).stepping(1, None, None) == full.setting


def test_a_beam_step_without_a_head_is_answered_by_the_measured_one(tmp_path: Path) -> None:
    def steps(low: float, us: float) -> dict[str, float]:
        return {"mean": low, "low": low, "same": low, "log_z_error": 0.0, "us_per_row": us}

    measured = calibration(
        [{**entry, "steps": steps(1.0, 9.0)} for entry in entries("full", (9.0, 8.0, 3.0), 1.0)],
        [
            {**entry, "steps": steps(0.97, 2.0)}
            for entry in entries("screen", (1.0, 1.0, 4.0), 0.9, probes=1)
        ],
    )
    decoder = LocalDecoder(open_index(write_model(tmp_path, calibration=measured)))
    asked: dict[str, Any] = {"beams_in": 2, "beams_out": 3}
    for spec, head, normalizer in (
        ({"min_precision": 0.95}, "screen", "approximate"),
        ({"min_precision": 0.99}, "full", "full"),
        ({"exact": True}, "full", "full"),
        ({"max_error": 0.5}, "full", "full"),
        ({"min_precision": 0.95, "width": 1e-3}, "full", "full"),
        ({}, "full", "full"),
        ({"normalizer": "full"}, "full", "full"),
    ):
        answer = decoder.beam_step(make_hidden(4), **asked, **spec).answer
        assert (answer.head, answer.normalizer) == (head, normalizer), spec


@pytest.mark.parametrize("hurried", [True, False])
def test_the_best_ids_and_their_log_z_are_found_as_a_beam_steps_are_by_one_call(
    tmp_path: Path, hurried: bool, monkeypatch: Any
) -> None:
    softmax, hidden_states = make_softmax(2001, 192, scale=2), make_hidden(4, 192, scale=0.6)
    parts, named = (
        {"sketch": usual_sketch(softmax)},
        {"full": HeadEntry(), "sketch": HeadEntry("sketch")},
    )
    steps = {"mean": 1.0, "low": 1.0, "same": 1.0, "log_z_error": 0.0, "us_per_row": 5.0}
    other = {**steps, "us_per_row": 2.0 if hurried else 9.0}
    measured = calibration(
        [{**entry, "steps": steps} for entry in entries("full", (9.0, 8.0, 3.0), 1.0)],
        [
            {**each, "steps": other}
            for each in entries("sketch", (1.0, 1.0, 1.0), 1.0, max_error=1e-15)
        ],
    )
    path = tmp_path / "lm" / "1"
    write_heads(path, softmax, parts=parts, heads=named, default_head="full", calibration=measured)
    decoder = LocalDecoder(open_index(path))
    head = decoder.index.head("sketch") if hurried else decoder.index.head("full")
    true = head.best_with_log_z(hidden_states, 3)
    monkeypatch.setattr(type(head), "topk", None)
    found = decoder.topk(hidden_states, 3, normalizer="approximate")
    assert (found.answer.head, found.answer.normalizer) == (head.name, "approximate")
    np.testing.assert_array_equal(found.ids, true.ids)
    np.testing.assert_array_equal(
        found.answer.log_z, true.log_z[:, :2].sum(axis=1).astype(np.float32)
    )
