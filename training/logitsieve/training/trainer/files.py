"""Files of a run, replaced whole, and its checkpoint: tensors, numbers and words alone."""

from __future__ import annotations

import os
from collections.abc import Callable
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
