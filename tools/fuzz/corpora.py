"""The inputs that are kept: the shortest of each outcome, a file of base64 lines per target."""

from base64 import b64decode, b64encode
from collections.abc import Iterable
from pathlib import Path

from tools.fuzz.targets import Target

FOLDER = Path(__file__).parent / "corpora"
MOST = 40  # inputs of a target
LONGEST = 2000  # bytes


def read_inputs(name: str) -> list[bytes]:
    """The corpus of a target, shortest first."""
    file = FOLDER / f"{name}.txt"
    return [b64decode(line) for line in file.read_text().splitlines()] if file.exists() else []


def shortest(target: Target, inputs: Iterable[bytes]) -> list[bytes]:
    """For each outcome the shortest input that leads to it, MOST at most."""
    by_outcome: dict[str, bytes] = {}
    for data in sorted(inputs, key=lambda data: (len(data), data)):
        if len(data) <= LONGEST:
            by_outcome.setdefault(target(data), data)
    return list(by_outcome.values())[:MOST]


def keep(target: Target, name: str, folder: Path) -> int:
    """Rewrite the corpus from what it holds and the files in `folder`; the number kept."""
    new = [file.read_bytes() for file in folder.glob("*") if file.is_file()]
    kept = shortest(target, [*read_inputs(name), *new])
    lines = (b64encode(data).decode() + "\n" for data in kept)
    (FOLDER / f"{name}.txt").write_text("".join(lines))
    return len(kept)
