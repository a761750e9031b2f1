from pathlib import Path
from typing import Any

import pytest

from logitsieve.cli.points import print_points, without_contexts
from logitsieve.index import Index, open_index
from tests.synthetic import make_softmax, write_heads


def point(head: str, us: float, mean: float, low: float, **knobs: float) -> dict[str, Any]:
    precision = {"mean": mean, "low": low, "worst": low, "best": 1.0}
    return {
        "head": {"name": head, "knobs": knobs},
        "rows": 1,
        "us_per_row": us,
        "precision": {"1": precision},
        "uneven": False,
        "candidates": 7.0,
        "mass_kept": 0.9,
        "max_error": 0.0 if head == "full" else 1.0,
    }


def make(path: Path, low: float) -> Index:
    """An index for P@1 >= 0.998 whose stored screen was measured at this lower bound."""
    knobs = {"escalate": -1.0, "probes": 1.0}
    points = [point("full", 100.0, 1.0, 1.0), point("screen", 30.0, 0.9986, low, **knobs)]
    points.append(point("sketch", 200.0, 1.0, 1.0, max_error=0.0))
    written = write_heads(
        path,
        make_softmax(),
        "screen",
        "sketch",
        config={"target_precision": {"p1": 0.998}},
        calibration={"machine": {"cpu": "any"}, "heldout_rows": 9, "points": points},
    )
    return open_index(written)


def test_points_are_shown_by_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    print_points(make(tmp_path / "m" / "2", 0.9978), bounds=True)
    printed = capsys.readouterr().out
    assert "0.9986 (0.9978)" in printed
    [taken] = [line for line in printed.splitlines() if " B=1 " in line and "P@" not in line]
    assert taken.startswith(" full ")
    print_points(make(tmp_path / "m" / "1", 0.9981))
    printed = capsys.readouterr().out
    costs = "P@1 >= 0.998 screen, 30 us; P@1 >= 0.999 full, 100 us; P@1 >= 0.9995 full"
    assert costs in " ".join(printed.split())
    assert "times are those of another machine, any" in printed
    assert "Cost of max_error of sketch at B=1: 0: 200 us" in printed
    words = [line.split()[:1] for line in printed.splitlines()]
    heads = [first for [first] in filter(None, words) if first in ("screen", "full")]
    assert heads == ["screen", "full"]


def test_contexts_are_shown_by_their_size() -> None:
    contexts = {"rows": 2, "dim": 3, "float32": "AAAA"}
    assert without_contexts({"contexts": contexts}) == {"contexts": {"rows": 2, "dim": 3}}
    assert without_contexts(None) is None
