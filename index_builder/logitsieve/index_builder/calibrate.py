"""What a new index's heads measure on this machine: calibration.json.

docs/building.md lists the fields. None of it decides an answer, so it is outside the digest.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from logitsieve.evaluation import Evaluation, evaluate_all, us_per_row
from logitsieve.heads import Head
from logitsieve.index_builder.config import Progress
from logitsieve.index_builder.contexts import Contexts
from logitsieve.types.results import Float32

KS = (1, 5, 10)
BATCHES = (1, 8, 64)
TIMED_K = 5
TIMED_ROWS = 2048
JUDGED_ROWS = 256  # rows judged at once
LIBRARIES = ("logitsieve", "numpy", "numba", "torch", "faiss-cpu")


def calibrate(
    heads: Mapping[str, Head],
    compared: Mapping[str, Head],
    heldout: Contexts,
    vocab_size: int,
    progress: Progress,
) -> dict[str, Any]:
    """Measure every head against `heads["exact"]` on the held-out contexts, one thread.

    `compared` are measured in the same way under names of their own; the index does not hold them.
    """
    ks = tuple(k for k in KS if k <= vocab_size)
    everything = {**heads, **compared}
    found = evaluate_all(everything, heads["exact"], heldout.blocks(JUDGED_ROWS), ks)
    hidden = heldout.sample(TIMED_ROWS)
    measured: dict[str, list[dict[str, Any]]] = {"points": [], "compared": []}
    for done, (name, head) in enumerate(everything.items(), start=1):
        group = measured["points" if name in heads else "compared"]
        group += measure(name, head, found[name], hidden, min(TIMED_K, vocab_size))
        progress("calibrate", done, len(everything))
    return {"machine": machine(), "heldout_rows": heldout.rows, **measured}


def measure(
    name: str, head: Head, found: Evaluation, hidden: Float32, timed_k: int
) -> list[dict[str, Any]]:
    """The head's operating point, once for each batch size: precision, candidates, time a row."""
    point = {
        "head": {"name": name, "knobs": dict(head.knobs)},
        "precision_at": {str(k): precision.mean for k, precision in found.precision.items()},
        "precision": {str(k): asdict(precision) for k, precision in found.precision.items()},
        "uneven": any(precision.uneven for precision in found.precision.values()),
        "candidates": found.scanned[max(k for k in found.scanned if k <= TIMED_K)],
        "mass_kept": found.mass_kept,
        "proven": head.proves,
    }
    return [
        {**point, "rows": batch, "us_per_row": us_per_row(head, hidden, timed_k, batch)}
        for batch in BATCHES
    ]


def machine() -> dict[str, str]:
    """What the timings depend on."""
    found = {
        "cpu": _cpu_name(),
        "threads": "1",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
    }
    for library in LIBRARIES:
        try:
            found[library] = version(library)
        except PackageNotFoundError:
            continue  # a checkout that is not installed has no version
    return found


def _cpu_name() -> str:
    """The processor as the system names it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
