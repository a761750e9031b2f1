"""The file of a run that holds its texts and options: all that `resume` needs."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import torch

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.config import CONTEXTS, HELD_OUT, TrainConfig
from logitsieve.training.trainer.corpus import FOLDER
from logitsieve.training.trainer.files import CHECKPOINT, COLUMNS, TENSORBOARD, replace_bytes
from logitsieve.training.trainer.language_model import WEIGHTS_FILE
from logitsieve.training.trainer.losses import read_options
from logitsieve.training.trainer.vocabulary import VOCABULARY_FILE

SETTINGS = "settings.json"


def has_bfloat16() -> bool:
    """True if oneDNN multiplies bfloat16 on this CPU; elsewhere it has no LSTM of that type."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def check_device(name: str, *, bfloat16: bool) -> None:
    """InvalidRequest unless it is the CPU or a GPU of this machine, and has an LSTM of the type."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InvalidRequest("device", name, "cpu or cuda") from error
    if device.type not in ("cpu", "cuda"):
        raise InvalidRequest("device", name, "cpu or cuda")
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise InvalidRequest("device", name, f"cpu, or one of the {count} that torch finds")
    if bfloat16 and device.type == "cpu" and not has_bfloat16():
        raise InvalidRequest("bfloat16", True, "False: this CPU multiplies no bfloat16 LSTM")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The text, the validation text (None: the end of the text), and all options."""

    text: Path
    valid: Path | None = None
    config: TrainConfig

    def to_json(self, *, names_only: bool = False) -> dict[str, Any]:
        """JSON values; files by their paths, or by their names alone."""
        files = {
            field: path and (path.name if names_only else str(path.resolve()))
            for field, path in (("text", self.text), ("valid", self.valid))
        }
        return {**asdict(self.config), **files}

    @classmethod
    def load(cls, folder: Path, field: str = "resume") -> Self:
        """Settings of the run in a folder; InvalidRequest names `field` without one."""
        file = folder / SETTINGS
        try:
            saved = json.loads(file.read_text(encoding="utf-8"))
            text, valid = Path(saved.pop("text")), saved.pop("valid")
            options: dict[str, Any] = {
                name: tuple(value) if isinstance(value, list) else value
                for name, value in saved.items()
            }
            config = TrainConfig(**options)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidRequest(field, f"{file} ({error})", "a folder with a run") from error
        return cls(text=text, valid=valid and Path(valid), config=config)


def begin(folder: Path, settings: Settings) -> None:
    """Create a new run; InvalidRequest if the folder holds one with a checkpoint."""
    _check_folder(folder)
    check_device(settings.config.device, bfloat16=settings.config.bfloat16)
    read_options(settings.config.loss, settings.config.loss_option)
    for name, path in (("text", settings.text), ("valid", settings.valid)):
        if path is not None and not path.is_file():
            raise InvalidRequest(name, path, "a text file, or one that is gzipped")
    folder.mkdir(parents=True, exist_ok=True)
    with alone(folder) if (folder / SETTINGS).exists() else nullcontext():
        shutil.rmtree(folder / FOLDER, ignore_errors=True)
        write_json(folder / SETTINGS, settings.to_json())


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Keep other processes off the run; InvalidRequest if one works on it already."""
    with (folder / SETTINGS).open("r+b") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            got = f"{folder}, in which another process trains"
            raise InvalidRequest("out", got, "another folder, or its end") from error
        yield


def _check_folder(folder: Path) -> None:
    """InvalidRequest if files other than those of a run without a checkpoint would be lost."""
    if (folder / CHECKPOINT).exists():
        raise InvalidRequest("out", f"{folder}, which holds a run", "another folder, or --resume")
    if (folder / SETTINGS).exists():
        Settings.load(folder, "out")
        return
    written = (FOLDER, VOCABULARY_FILE, WEIGHTS_FILE, *COLUMNS, TENSORBOARD, CONTEXTS, HELD_OUT)
    for name in written:
        if (folder / name).exists():
            got = f"{folder}, which holds a {name} that is of no run"
            raise InvalidRequest("out", got, "a folder for this run alone")


def write_json(file: Path, value: dict[str, Any]) -> None:
    """Replace a file by a JSON document."""
    replace_bytes(file, (json.dumps(value, indent=2) + "\n").encode("utf-8"))
