"""Checkpoints: one file that is replaced at once, of tensors, numbers and words alone."""

from __future__ import annotations

from pathlib import Path
from pickle import UnpicklingError  # what torch calls a file that it will not read
from typing import Any
from zipfile import BadZipFile

import torch

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.trainer.files import replace

CHECKPOINT = "checkpoint.pt"


def save(folder: Path, state: dict[str, Any]) -> None:
    """Replace the checkpoint of a run; whoever dies meanwhile leaves the last one."""
    replace(folder / CHECKPOINT, lambda stream: torch.save(state, stream))


def load(folder: Path) -> dict[str, Any] | None:
    """The state last saved, on the CPU, or None; InvalidRequest where the file is damaged."""
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


def random_state(device: str) -> dict[str, Any]:
    """The states of torch's generators, which dropout draws from."""
    state = {"cpu": torch.get_rng_state()}
    if device.startswith("cuda"):
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: dict[str, Any], device: str) -> None:
    """Go on with the numbers that would have come next."""
    torch.set_rng_state(state["cpu"])
    if device.startswith("cuda"):
        torch.cuda.set_rng_state(state["cuda"], device)
