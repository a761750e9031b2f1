from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from logitsieve.cli.points import print_changes, print_points, without_contexts
from logitsieve.index import HeadEntry, Index, open_index, write_index
from tests.synthetic import make_softmax, screen_arrays


def point(head: str, us: float, mean: float, low: float, **knobs: float) -> dict[str, Any]:
    precision = {"mean": mean, "low": low, "worst": low, "best": 1.0}
    return {
        "head": {"name": head, "knobs": knobs},
        "rows": 1,
        "us_per_row": us,
        "precision_at": {"1": mean},
        "precision": {"1": precision},
        "uneven": False,
        "candidates": 7.0,
        "mass_kept": 0.9,
        "proven": head == "exact",
    }


def make(path: Path, low: float) -> Index:
    """An index for P@1 >= 0.998 whose stored screen was measured at this lower bound."""
    softmax = make_softmax()
    knobs = {"escalate": -1.0, "prescreen": 0.0, "probes": 1.0}
    points = [point("exact", 100.0, 1.0, 1.0), point("screen", 30.0, 0.9986, low, **knobs)]
    measured = {"machine": {"cpu": "any"}, "heldout_rows": 9, "points": points, "compared": []}
    write_index(
        path,
        softmax=softmax,
        parts={"screen": screen_arrays(softmax)},
        heads={"exact": HeadEntry(), "screen": HeadEntry("screen", knobs)},
        default_head="screen",
        config={"target_precision": {"p1": 0.998}},
        calibration=measured,
    )
    return open_index(path)


def test_a_stored_point_that_lost_its_proof_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = make(tmp_path / "m" / "1", 0.9981), make(tmp_path / "m" / "2", 0.9978)
    print_points(after, bounds=True)
    print_changes(before, after)
    printed = capsys.readouterr().out
    assert "0.9986 (0.9978)" in printed
    [row] = [line for line in printed.splitlines() if "->" in line]
    assert row.index("screen") < row.index("->") < row.index("exact")
    assert "is not proven to meet the target: the lower bound of P@1 is 0.9978 < 0.998" in printed
    assert "(30 us at B=1)" in printed
    assert "its mean 0.9986" in printed


def test_times_of_another_machine_are_said_to_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    print_points(make(tmp_path / "m" / "1", 0.9981))
    assert "times are those of another machine, any" in capsys.readouterr().out


def test_a_stored_point_that_meets_the_target_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before, after = make(tmp_path / "m" / "1", 0.9981), make(tmp_path / "m" / "2", 0.9983)
    print_changes(before, after)
    assert "Warning" not in capsys.readouterr().out


def test_contexts_are_shown_by_their_size() -> None:
    contexts = {"rows": 2, "dim": 3, "float32": "AAAA"}
    assert without_contexts({"contexts": contexts}) == {"contexts": {"rows": 2, "dim": 3}}
    assert without_contexts(None) is None
