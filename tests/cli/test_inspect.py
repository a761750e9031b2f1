import json
from pathlib import Path
from typing import Any

import pytest

from logitsieve.evaluation.timing import BATCHES
from tests.cli.conftest import Run


def test_inspect_as_json_and_as_tables(run: Run, index: Path) -> None:
    facts = json.loads(run("inspect", index, "--json").stdout)
    assert (facts["vocab_size"], facts["dim"]) == (300, 24)
    assert facts["default_head"] == "screen"
    assert facts["heads"]["screen"]["knobs"]["probes"]["value"] == 1
    assert facts["heads"]["full"]["knobs"] == {}
    softmax = facts["files"]["softmax.safetensors"]
    assert softmax["bytes"] == (index / "softmax.safetensors").stat().st_size
    assert softmax["share_of_W"] == pytest.approx(softmax["bytes"] / (300 * 24 * 4))
    shown = run("inspect", index)
    for text in ("screen.safetensors", "probes", "300", "best clusters"):
        assert text in shown.stdout
    [choice] = facts["auto"]["choices"]
    assert (choice["head"], choice["us_per_row"]) == ("screen", None)
    [line] = run("inspect", index).stdout.splitlines()[-2:-1]
    assert line.startswith(" any  screen ")
    facts = json.loads(run("inspect", index, "--exact", "-k", 1, "--json").stdout)
    assert [choice["head"] for choice in facts["auto"]["choices"]] == ["full"]


@pytest.mark.parametrize("command", [["inspect"], ["inspect", "--json"]])
@pytest.mark.parametrize(
    "text", ['{"points": 3}', '{"machine": {"cpu": "any"}, "heldout_rows": "many"}']
)
def test_a_misshapen_calibration(run: Run, index: Path, command: list[str], text: str) -> None:
    (index / "calibration.json").write_text(text)
    result = run(*command, index, code=1, says="calibration.json")
    assert result.stdout == ""


def test_inspect_shows_points_and_what_auto_takes(run: Run, tuned: Path) -> None:
    shown = run("inspect", tuned).stdout
    [line] = [line for line in shown.splitlines() if line.endswith(" B=1, 2, 4, 8, 16, 64 ")]
    assert line.startswith(" full ")  # no target: a proof
    assert "wrong with a chance of at most 1e-15" in shown
    assert "AUTO, proven" in run("inspect", tuned, "--max-error", 0).stdout
    shown = run("inspect", tuned, "--min-precision", 0.01).stdout
    assert "AUTO, asked for P@k >= 0.01" in shown
    facts = json.loads(run("inspect", tuned, "--min-precision", 0.01, "--json").stdout)
    choices = facts["auto"]["choices"]
    assert [choice["k"] for choice in choices[::6]] == ["1", "2-5", "6-10", "11 or more"]
    assert [choice["rows"] for choice in choices[:6]] == [*BATCHES]
    assert all(choice["max_error"] == 0 for choice in choices[-6:])
    for choice in choices[:18]:
        assert choice["max_error"] == 0 or min(choice["precision_low"].values()) >= 0.01
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
def test_auto_takes_a_proof_if_asked(run: Run, tuned: Path, options: list[Any]) -> None:
    assert "AUTO, asked for a proof" in run("inspect", tuned, *options).stdout
    facts = json.loads(run("inspect", tuned, *options, "-k", 7, "--json").stdout)
    assert [choice["k"] for choice in facts["auto"]["choices"]] == ["6-10"] * len(BATCHES)
    assert all(choice["max_error"] == 0 for choice in facts["auto"]["choices"])
