"""The benchmark of GPUs runs to its end under the interpreter; its times mean nothing here."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.gpu.__main__ import main

ARGUMENTS = (
    "--shapes 330x16 --types bfloat16 --batches 1 --ks 5 --clusters 2 --contexts 8 --repeats 1"
)


def test_every_method_has_its_row(tmp_path: Path) -> None:
    main([*ARGUMENTS.split(), "--out", str(tmp_path)])
    results = json.loads((tmp_path / "gpu.json").read_text())
    methods = {row["method"] for row in results["rows"]}
    assert {"torch eager", "exact", "certified", "screen", "exact, a draw"} <= methods
    right = {row["method"]: row["p1"] for row in results["rows"] if "p1" in row}
    assert right["exact"] == right["certified"] == 1.0
    assert (tmp_path / "gpu.md").read_text().count("\n") == len(results["rows"]) + 4
