import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Run


def test_tune_as_json_and_what_was_left_out(run: Run, index: Path, contexts: Path) -> None:
    out = index.parent / "2"
    options = ["--rows", 40, "--minutes", 0, "--json"]
    result = run("tune", index, "--contexts", contexts, "--out", out, *options)
    facts = json.loads(result.stdout)
    calibration = facts["calibration"]
    assert facts["index"] == str(out)
    assert {point["head"]["name"] for point in calibration["points"]} == {"exact", "screen"}
    assert (calibration["heldout_rows"], calibration["settings"]["measured"]) == (40, 2)
    assert calibration["contexts"] == {"rows": 40, "dim": 24}
    assert {choice["k"] for choice in facts["auto"]} == {"any"}
    options[-1:] = ["--out", index.parent / "3"]
    shown = run("tune", index, "--contexts", contexts, *options).stdout
    assert "settings left out, --minutes were over" in shown


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
    run("tune", index, *(part for pair in given.items() for part in pair), code=2, says=field)
    assert list(index.parent.iterdir()) == [index]
