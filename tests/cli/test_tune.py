"""tune, and what inspect shows of operating points and of AUTO."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run


@pytest.fixture
def tuned(run: Run, index: Path, contexts: Path) -> Path:
    out = index.parent / "2"
    result = run("tune", index, "--contexts", contexts, "--out", out)
    assert result.exit_code == 0
    assert "settings measured" in result.stdout
    assert "Warning: " not in result.stdout.replace("Warning: precision varies", "")
    return out


def test_tune_as_json(run: Run, index: Path, contexts: Path) -> None:
    out = index.parent / "2"
    options = ["--rows", 40, "--minutes", 0, "--json"]
    result = run("tune", index, "--contexts", contexts, "--out", out, *options)
    facts = json.loads(result.stdout)
    calibration = facts["calibration"]
    assert facts["index"] == str(out)
    assert {point["head"]["name"] for point in calibration["points"]} == {"exact", "screen"}
    assert (calibration["heldout_rows"], calibration["settings"]["measured"]) == (40, 2)
    assert calibration["contexts"] == {"rows": 40, "dim": 24}


def test_what_was_left_out_is_said(run: Run, index: Path, contexts: Path) -> None:
    out = index.parent / "2"
    result = run("tune", index, "--contexts", contexts, "--out", out, "--minutes", 0)
    assert "settings left out, --minutes were over" in result.stdout


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (["--out", "1"], "out: got"),
        (["--out", "one"], "out: got"),
        (["--rows", 0], "--rows"),
        (["--minutes", -1], "--minutes"),
        (["--contexts", "none.npy"], "contexts: got"),
    ],
)
def test_tune_with_wrong_options(
    run: Run, index: Path, contexts: Path, options: list[Any], field: str
) -> None:
    given = {"--contexts": contexts, "--out": index.parent / "2"}
    given[options[0]] = index.parent / options[1] if options[0] == "--out" else options[1]
    result = run("tune", index, *(part for pair in given.items() for part in pair))
    assert result.exit_code == 2
    assert field in result.stderr
    assert list(index.parent.iterdir()) == [index]


def test_inspect_shows_points_and_where_auto_takes_them(run: Run, tuned: Path) -> None:
    shown = run("inspect", tuned).stdout
    [line] = [line for line in shown.splitlines() if line.endswith(" B=1, B=8, B=64 ")]
    assert line.startswith(" screen ")  # no target: the default head ...
    assert " probes=1 " in line  # ... at its stored knobs
    assert "no target: the default head" in shown
    [centroids] = [line for line in shown.splitlines() if "centroids" in line]
    assert "4 C D" in centroids
    assert f"{4 * 6 * 24}" in centroids


def test_inspect_shows_what_auto_takes_for_a_precision(run: Run, tuned: Path) -> None:
    shown = run("inspect", tuned, "--min-precision", 0.01).stdout
    assert "AUTO, asked for P@k >= 0.01" in shown
    facts = json.loads(run("inspect", tuned, "--min-precision", 0.01, "--json").stdout)
    choices = facts["auto"]["choices"]
    assert [choice["k"] for choice in choices[::3]] == ["1", "2-5", "6-10", "11 or more"]
    assert [choice["rows"] for choice in choices[:3]] == [1, 8, 64]
    assert all(choice["proven"] for choice in choices[-3:])
    for choice in choices[:9]:
        assert choice["proven"] or min(choice["precision_low"].values()) >= 0.01
        assert choice["us_per_row"] > 0
    # Nothing that is precise enough is faster.
    points = facts["calibration"]["points"]
    least = min(
        point["us_per_row"]
        for point in points
        if point["rows"] == 1 and point["precision"]["1"]["low"] >= 0.01
    )
    assert choices[0]["us_per_row"] == least


@pytest.mark.parametrize("options", [["--exact"], ["--min-precision", 1]])
def test_inspect_shows_what_auto_takes_for_a_proof(
    run: Run, tuned: Path, options: list[Any]
) -> None:
    assert "AUTO, asked for a proof" in run("inspect", tuned, *options).stdout
    facts = json.loads(run("inspect", tuned, *options, "-k", 7, "--json").stdout)
    assert [choice["k"] for choice in facts["auto"]["choices"]] == ["6-10"] * 3
    assert all(choice["proven"] for choice in facts["auto"]["choices"])


def test_inspect_of_an_index_that_was_not_calibrated(run: Run, index: Path) -> None:
    facts = json.loads(run("inspect", index, "--json").stdout)
    [choice] = facts["auto"]["choices"]
    assert (choice["head"], choice["us_per_row"]) == ("screen", None)
    [line] = run("inspect", index).stdout.splitlines()[-2:-1]
    assert line.startswith(" any  screen ")
    [choice] = json.loads(run("inspect", index, "--exact", "-k", 1, "--json").stdout)["auto"][
        "choices"
    ]
    assert choice["head"] == "exact"


def test_memory_as_json(run: Run, index: Path) -> None:
    memory = json.loads(run("inspect", index, "--json").stdout)["memory"]
    assert memory["softmax"]["tensors"]["weight"] == {"formula": "4 V D", "bytes": 4 * 300 * 24}
    screen = memory["screen"]
    assert screen["bytes"] == sum(tensor["bytes"] for tensor in screen["tensors"].values())
    assert screen["share_of_W"] == pytest.approx(screen["bytes"] / (300 * 24 * 4))
    assert [screen["sizes"][letter] for letter in "VDC"] == [300, 24, 6]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (["--min-precision", 0], "min_precision: got 0.0, allowed: a number in (0, 1]"),
        (["--min-precision", "nan"], "min_precision"),
        (["--min-precision", "high"], "--min-precision"),
        (["--min-precision", 0.5, "--exact"], "min_precision: got 0.5, allowed: none beside exact"),
        (["--exact", "-k", 0], "k: got 0"),
        (["-k", 301], "k: got 301, allowed: 1 to 300"),
    ],
)
def test_inspect_with_wrong_options(run: Run, index: Path, options: list[Any], field: str) -> None:
    result = run("inspect", index, *options)
    assert result.exit_code == 2
    assert field in result.stderr
    assert result.stdout == ""
