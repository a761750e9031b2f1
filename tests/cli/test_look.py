"""evaluate, inspect, report and verify: what reads an index."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import Run


def test_inspect_as_json(run: Run, index: Path) -> None:
    facts = json.loads(run("inspect", index, "--json").stdout)
    assert (facts["vocab_size"], facts["dim"]) == (300, 24)
    assert facts["default_head"] == "screen"
    assert facts["heads"]["screen"]["knobs"]["probes"]["value"] == 1
    assert facts["heads"]["exact"]["knobs"] == {}
    softmax = facts["files"]["softmax.safetensors"]
    assert softmax["bytes"] == (index / "softmax.safetensors").stat().st_size
    assert softmax["share_of_W"] == pytest.approx(softmax["bytes"] / (300 * 24 * 4))


def test_inspect_as_tables(run: Run, index: Path) -> None:
    shown = run("inspect", index)
    assert shown.exit_code == 0
    for text in ("screen.safetensors", "probes", "300", "best clusters"):
        assert text in shown.stdout


@pytest.mark.parametrize("command", [["inspect"], ["inspect", "--json"], ["report"]])
@pytest.mark.parametrize(
    "text", ['{"points": 3}', '{"machine": {"cpu": "any"}, "heldout_rows": "many"}']
)
def test_a_calibration_of_another_shape_is_refused(
    run: Run, index: Path, command: list[str], text: str
) -> None:
    (index / "calibration.json").write_text(text)
    result = run(*command, index)
    assert result.exit_code == 1
    assert "calibration.json" in result.stderr
    assert result.stdout == ""


def test_verify(run: Run, index: Path) -> None:
    facts = json.loads(run("verify", index, "--json").stdout)
    assert facts["ok"]
    assert {path.name for path in index.iterdir()} == set(facts["checked"])
    assert "no damage" in run("verify", index).stdout


@pytest.mark.parametrize("name", ["softmax.safetensors", "screen.safetensors", "manifest.json"])
def test_verify_names_the_damaged_file(run: Run, index: Path, name: str) -> None:
    data = bytearray((index / name).read_bytes())
    data[-40] ^= 1
    (index / name).write_bytes(data)
    result = run("verify", index, "--json")
    assert result.exit_code == 1
    assert name in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("command", ["verify", "inspect", "report"])
def test_what_is_no_index_is_refused(run: Run, tmp_path: Path, command: str) -> None:
    garbage = tmp_path / "garbage" / "1"
    garbage.mkdir(parents=True)
    (garbage / "manifest.json").write_bytes(b"\x00garbage")
    for path, reason in ((garbage, "manifest.json"), (tmp_path / "no" / "1", "no such directory")):
        result = run(command, path)
        assert result.exit_code == 1
        assert reason in result.stderr


def test_evaluate_as_json(run: Run, index: Path, contexts: Path) -> None:
    result = run("evaluate", index, "--contexts", contexts, "--knob", "probes=6", "--json")
    assert result.exit_code == 0
    screen, exact = json.loads(result.stdout)["heads"]
    assert (screen["head"], screen["knobs"]["probes"]) == ("screen", 6)
    assert screen["rows"] == exact["rows"] == 200
    assert exact["precision"]["5"]["mean"] == exact["mass_kept"] == 1
    assert 0 < screen["precision"]["5"]["mean"] <= 1
    assert set(screen["precision"]) == {"1", "5", "10"}
    assert min(screen["us_per_row"], exact["us_per_row"]) > 0
    assert exact["coverage"] == exact["covered"] == {"1": 1, "5": 1, "10": 1}


def test_evaluate_tells_what_was_left_to_the_fallback(
    run: Run, index: Path, contexts: Path
) -> None:
    options = ("--contexts", contexts, "--knob", "escalate=0.3")
    screen = json.loads(run("evaluate", index, *options, "--json").stdout)["heads"][0]
    own, mean = screen["coverage"]["5"], screen["precision"]["5"]["mean"]
    assert 0 < own < 1
    assert own * screen["covered"]["5"] + (1 - own) == pytest.approx(mean)
    shown = run("evaluate", index, *options).stdout
    assert "own: share not left to the fallback" in shown
    none = run("evaluate", index, "--contexts", contexts, "--knob", "escalate=1", "--json").stdout
    assert json.loads(none)["heads"][0]["covered"] == {}


def test_evaluate_as_a_table(run: Run, index: Path, contexts: Path) -> None:
    shown = run("evaluate", index, "--contexts", contexts, "-k", 2, "--head", "exact")
    assert shown.exit_code == 0
    assert "exact" in shown.stdout
    assert "screen" not in shown.stdout


def test_evaluate_spreads_the_rows_that_it_judges(run: Run, index: Path, contexts: Path) -> None:
    result = run("evaluate", index, "--contexts", contexts, "--max-rows", 50, "--json")
    assert [head["rows"] for head in json.loads(result.stdout)["heads"]] == [50, 50]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        (["-k", 0], "-k"),
        (["-k", 301], "k: got 301, allowed: 1..300"),
        (["--head", "svd"], "head: got 'svd', allowed: exact, screen"),
        (["--knob", "speed=1"], "speed"),
        (["--knob", "probes"], "knob: got 'probes', allowed: name=number"),
        (["--knob", "probes=0"], "probes"),
        (["--batch", 0], "--batch"),
    ],
)
def test_evaluate_with_wrong_options(
    run: Run, index: Path, contexts: Path, options: list[object], field: str
) -> None:
    result = run("evaluate", index, "--contexts", contexts, *options)
    assert result.exit_code == 2
    assert field in result.stderr


@pytest.mark.parametrize("command", ["evaluate", "report"])
@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (None, "no such file"),
        (np.ones((4, 23), np.float32), "D = 23, allowed: D = 24"),
        (np.ones(24, np.float32), "shape [24], allowed: [N, D]"),
        (np.ones((4, 24), np.int64), "dtype int64"),
        (np.full((4, 24), np.nan, np.float32), "contexts: got NaN"),
    ],
)
def test_wrong_contexts(
    run: Run, index: Path, tmp_path: Path, command: str, array: np.ndarray | None, reason: str
) -> None:
    file = tmp_path / "wrong.npy"
    if array is not None:
        np.save(file, array)
    result = run(command, index, "--contexts", file)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: contexts: ")
    assert reason.lower() in result.stderr.lower()


def test_report(run: Run, index: Path, contexts: Path, tmp_path: Path) -> None:
    out = tmp_path / "pages" / "report.html"
    assert run("report", index, "--contexts", contexts, "--out", out).stdout.strip() == str(out)
    assert "<title>demo 1</title>" in out.read_text()
