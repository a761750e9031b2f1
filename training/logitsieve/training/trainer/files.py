"""Files of a run, replaced whole; its checkpoint, of tensors, numbers and words alone; its logs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, Any
from zipfile import BadZipFile

import torch

from logitsieve.api.errors import InvalidRequest

CHECKPOINT, TRAINED, VALIDATED = "checkpoint.pt", "log.csv", "valid.csv"
COLUMNS = {
    TRAINED: ("step", "epoch", "words", "seconds", "words_per_second", "loss", "lr", "gradient"),
    VALIDATED: ("step", "epoch", "words", "seconds", "loss", "perplexity"),
}


def replace(file: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Let `write` fill a new file in the same folder, then rename it: whole or not at all."""
    fresh = file.with_name(f".tmp-{file.name}")
    with fresh.open("wb") as stream:
        write(stream)
        stream.flush()
        os.fsync(stream.fileno())  # else a power cut might leave the name without content
    fresh.replace(file)


def save_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint of a run at once: a process that dies leaves the last one."""
    replace(folder / CHECKPOINT, lambda stream: torch.save(state, stream))


def load_checkpoint(folder: Path) -> dict[str, Any] | None:
    """Return the state saved last, on the CPU, or None; InvalidRequest if the file is damaged."""
    file = folder / CHECKPOINT
    if not file.exists():
        return None
    try:
        state: dict[str, Any] = torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, EOFError, RuntimeError, ValueError, BadZipFile, UnpicklingError) as error:
        got = f"{file}, unreadable"
        raise InvalidRequest("resume", got, "a checkpoint that is whole") from error
    return state


class Log:
    """A table of numbers, for a run that goes on after `step`: later lines are dropped.

    Losses are in nats; `gradient` is the norm before clipping; seconds are those of training.
    """

    def __init__(self, file: Path, step: int) -> None:
        self._file = file
        text = file.read_text(encoding="utf-8") if file.exists() else ""
        whole = text[: text.rfind("\n") + 1].splitlines()[1:]  # a killed process leaves half a line
        lines = [line for line in whole if int(line.split(",")[0]) <= step]
        content = "\n".join([",".join(COLUMNS[file.name]), *lines, ""])
        replace(file, lambda stream: stream.write(content.encode()))

    def write(self, row: Sequence[float]) -> None:
        """Append a line with a number for each of the file's COLUMNS."""
        with self._file.open("a", encoding="utf-8") as stream:
            stream.write(",".join(map(str, row)) + "\n")
            stream.flush()
            os.fsync(stream.fileno())  # the next checkpoint relies on this line
