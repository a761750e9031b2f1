import json
from pathlib import Path

from tests.cli.conftest import Run


def test_tune_as_json_and_what_was_left_out(run: Run, index: Path, contexts: Path) -> None:
    out = index.parent / "2"
    options = ["--rows", 40, "--minutes", 0, "--json"]
    result = run("tune", index, "--contexts", contexts, "--out", out, *options)
    facts = json.loads(result.stdout)
    calibration = facts["calibration"]
    assert facts["index"] == str(out)
    assert {point["head"]["name"] for point in calibration["points"]} == {"full", "screen"}
    assert (calibration["heldout_rows"], calibration["settings"]["measured"]) == (40, 2)
    assert calibration["contexts"] == {"rows": 40, "dim": 24}
    assert {choice["k"] for choice in facts["auto"]} == {"any"}
    options[-1:] = ["--out", index.parent / "3"]
    shown = run("tune", index, "--contexts", contexts, *options).stdout
    assert "settings left out, --minutes were over" in shown
