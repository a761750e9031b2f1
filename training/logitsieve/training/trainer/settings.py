"""The file of a run that holds its texts and options: all that `resume` needs."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

import torch

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.config import TrainConfig
from logitsieve.training.trainer.corpus import FOLDER
from logitsieve.training.trainer.files import CHECKPOINT, replace
from logitsieve.training.trainer.losses import read_options

SETTINGS = "settings.json"


def check_device(name: str) -> None:
    """InvalidRequest unless it is the CPU or a GPU of this machine."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise InvalidRequest("device", name, "cpu or cuda") from error
    if device.type not in ("cpu", "cuda"):
        raise InvalidRequest("device", name, "cpu or cuda")
    if device.type == "cuda" and (device.index or 0) >= (count := torch.cuda.device_count()):
        raise InvalidRequest("device", name, f"cpu, or one of the {count} that torch finds")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The text, the validation text (None: the end of the text), and all options."""

    text: Path
    valid: Path | None = None
    config: TrainConfig

    def to_json(self) -> dict[str, Any]:
        """Return JSON values; files by their paths."""
        files = {"text": self.text, "valid": self.valid}
        paths = {name: path and str(path.resolve()) for name, path in files.items()}
        return {**asdict(self.config), **paths}

    @classmethod
    def load(cls, folder: Path, field: str = "resume") -> Self:
        """Return settings of the run in a folder; InvalidRequest names `field` without one."""
        file = folder / SETTINGS
        try:
            saved = json.loads(file.read_text(encoding="utf-8"))
            text, valid = Path(saved.pop("text")), saved.pop("valid")
            saved["loss_option"] = tuple(saved["loss_option"])
            config = TrainConfig(**saved)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidRequest(field, f"{file} ({error})", "a folder with a run") from error
        return cls(text=text, valid=valid and Path(valid), config=config)


def begin(folder: Path, settings: Settings) -> None:
    """Create a new run; InvalidRequest if the folder holds a checkpoint, or files of no run."""
    if (folder / CHECKPOINT).exists():
        raise InvalidRequest("out", f"{folder}, which holds a run", "another folder, or --resume")
    if folder.exists() and any(folder.iterdir()):
        Settings.load(folder, "out")
    check_device(settings.config.device)
    read_options(settings.config.loss, settings.config.loss_option)
    for name, path in (("text", settings.text), ("valid", settings.valid)):
        if path is not None and not path.is_file():
            raise InvalidRequest(name, path, "a text file, or one that is gzipped")
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / FOLDER, ignore_errors=True)
    content = json.dumps(settings.to_json(), indent=2) + "\n"
    replace(folder / SETTINGS, lambda stream: stream.write(content.encode()))
