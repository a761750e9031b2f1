from __future__ import annotations

import json
from pathlib import Path

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


@pytest.mark.parametrize("command", [["inspect"], ["inspect", "--json"]])
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


def test_inspect_shows_points_and_where_auto_takes_them(run: Run, tuned: Path) -> None:
    shown = run("inspect", tuned).stdout
    [line] = [line for line in shown.splitlines() if line.endswith(" B=1, B=8, B=64 ")]
    assert line.startswith(" screen ")  # no target: the default head ...
    assert " probes=1 " in line  # ... at its stored knobs
    assert "no target: the default head" in shown
