"""Raw results as JSON, and the Markdown table made of them beside it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from benchmarks.machine import describe
from benchmarks.race.datasets import Dataset


def about(data: Dataset) -> dict[str, Any]:
    """What every result carries: machine and its load, shapes, origin, threads."""
    return {
        "machine": describe(),
        "load": os.getloadavg()[0],
        "threads": 1,
        "data": data.name,
        "provenance": data.provenance,
        "vocab_size": len(data.weight),
        "dim": data.weight.shape[1],
        "precision": "float32",
    }


def write(path: Path, results: dict[str, Any], table: str) -> None:
    """`path` and the same name with .md; the table is printed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    path.with_suffix(".md").write_text(table, encoding="utf-8")
    print(table)
