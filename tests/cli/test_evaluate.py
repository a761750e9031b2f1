import json
from pathlib import Path

from tests.cli.conftest import Run


def test_evaluate_as_json_and_as_a_table(run: Run, index: Path, contexts: Path) -> None:
    result = run("evaluate", index, "--contexts", contexts, "--knob", "probes=6", "--json")
    screen, full = json.loads(result.stdout)["heads"]
    assert (screen["head"], screen["knobs"]["probes"]) == ("screen", 6)
    assert screen["rows"] == full["rows"] == 200
    assert full["precision"]["5"]["mean"] == full["mass_kept"] == 1
    assert 0 < screen["precision"]["5"]["mean"] <= 1
    assert set(screen["precision"]) == {"1", "5", "10"}
    assert min(screen["us_per_row"], full["us_per_row"]) > 0
    assert full["coverage"] == {"1": 1, "5": 1, "10": 1}
    result = run("evaluate", index, "--contexts", contexts, "--max-rows", 50, "--json")
    assert [head["rows"] for head in json.loads(result.stdout)["heads"]] == [50, 50]
    options = ("--contexts", contexts, "--knob", "escalate=0.3")
    screen = json.loads(run("evaluate", index, *options, "--json").stdout)["heads"][0]
    assert 0 < screen["coverage"]["5"] < 1
    shown = run("evaluate", index, *options).stdout
    assert "own: share not left to the fallback" in shown
    shown = run("evaluate", index, "--contexts", contexts, "-k", 2, "--head", "full")
    assert "full" in shown.stdout
    assert "screen" not in shown.stdout
