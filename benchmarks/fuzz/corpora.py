"""The inputs that are kept: the shortest of each way that a target was seen to take one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from benchmarks.fuzz.targets import Target

FOLDER = Path(__file__).parent / "corpora"
MOST = 40  # of a target
LONGEST = 2000  # bytes


def inputs(folder: Path) -> list[Path]:
    """Of one target, in a fixed order."""
    return sorted(file for file in folder.glob("*") if file.is_file())


def shortest(target: Target, found: Iterable[bytes]) -> dict[str, bytes]:
    """How they were taken -> the shortest input that was."""
    kept: dict[str, bytes] = {}
    for data in sorted(found, key=lambda data: (len(data), data)):
        if len(data) <= LONGEST:
            kept.setdefault(target(data), data)
    return dict(list(kept.items())[:MOST])


def keep(target: Target, name: str, found: Path) -> int:
    """Put the shortest of what is kept and what is in `found` into the corpus; how many it has."""
    folder = FOLDER / name
    folder.mkdir(parents=True, exist_ok=True)
    files = [*inputs(folder), *inputs(found)]
    kept = shortest(target, [file.read_bytes() for file in files])
    for file in inputs(folder):
        file.unlink()
    for data in kept.values():
        (folder / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    return len(kept)
