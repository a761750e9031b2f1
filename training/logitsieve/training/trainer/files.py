"""Files of a run, replaced whole; its checkpoint, of tensors, numbers and words alone; its logs."""

from __future__ import annotations

import csv
import io
import os
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, Any
from zipfile import BadZipFile

import torch

from logitsieve.api.errors import InvalidRequest


def replace(file: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Let `write` fill a new file beside `file`, then rename it: whole or not at all."""
    beside = file.with_name(f".tmp-{file.name}")
    with beside.open("wb") as stream:
        write(stream)
        stream.flush()
        os.fsync(stream.fileno())  # else a power cut might leave the name without content
    beside.replace(file)


def replace_bytes(file: Path, content: bytes) -> None:
    """`replace` with the content of the file."""
    replace(file, lambda stream: stream.write(content))


CHECKPOINT = "checkpoint.pt"


def save_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint of a run at once: a process that dies leaves the last one."""
    replace(folder / CHECKPOINT, lambda stream: torch.save(state, stream))


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """The state saved last, on the CPU, or None; InvalidRequest if the file is damaged."""
    file = folder / CHECKPOINT
    if not file.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, ValueError, BadZipFile, UnpicklingError) as error:
        raise InvalidRequest(
            "resume", f"{file}, unreadable", "a checkpoint that is whole"
        ) from error
    return state


TRAINED, VALIDATED, TENSORBOARD = "log.csv", "valid.csv", "tensorboard"
COLUMNS = {
    TRAINED: ("step", "epoch", "words", "seconds", "words_per_second", "loss", "lr", "gradient"),
    VALIDATED: ("step", "epoch", "words", "seconds", "loss", "perplexity"),
}


class Logs:
    """Logs of a run that resumes at `step`; `validated` is the step of its last validation.

    Later lines are dropped, and the curves are drawn again from the rest: a process that is killed
    loses some minutes of them. Losses are in nats; `gradient` is the norm before clipping; seconds
    are those of training.
    """

    def __init__(self, folder: Path, step: int, validated: int) -> None:
        self._folder = folder
        for name, last in ((TRAINED, step), (VALIDATED, validated)):
            _cut(folder / name, COLUMNS[name], last)
        shutil.rmtree(folder / TENSORBOARD, ignore_errors=True)
        from torch.utils.tensorboard import SummaryWriter  # an import of seconds

        self._board = SummaryWriter(str(folder / TENSORBOARD), purge_step=0)
        rows = [(name, row) for name in COLUMNS for row in read_log(folder / name)]
        begun = time.time() - max((row["seconds"] for _, row in rows), default=0)
        for name, row in rows:
            self._draw(name, row, begun + row["seconds"])

    def close(self) -> None:
        self._board.close()

    def write(self, name: str, row: Mapping[str, float]) -> None:
        """Append a line to `log.csv` or `valid.csv`, and to the curves."""
        with (self._folder / name).open("a", encoding="utf-8", newline="") as file:
            csv.DictWriter(file, COLUMNS[name], lineterminator="\n").writerow(row)
            file.flush()
            os.fsync(file.fileno())  # the next checkpoint relies on this line
        self._draw(name, row, time.time())

    def _draw(self, name: str, row: Mapping[str, float], when: float) -> None:
        part = "train" if name == TRAINED else "valid"
        for column, value in row.items():
            if column != "step":
                self._board.add_scalar(f"{part}/{column}", value, int(row["step"]), when)


def read_log(file: Path) -> list[dict[str, float]]:
    """The lines of a log, as numbers by column."""
    with file.open(encoding="utf-8", newline="") as stream:
        return [
            {column: float(value) for column, value in row.items()}
            for row in csv.DictReader(stream)
        ]


def _cut(file: Path, columns: tuple[str, ...], step: int) -> None:
    """Keep whole lines up to `step`: a killed process may have left half a line."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    whole = text[: text.rfind("\n") + 1]
    kept = io.StringIO()
    writer = csv.DictWriter(kept, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(row for row in csv.DictReader(io.StringIO(whole)) if int(row["step"]) <= step)
    replace_bytes(file, kept.getvalue().encode("utf-8"))
