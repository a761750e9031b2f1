"""What a run was begun with, as a file: `resume` needs nothing else."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from logitsieve.training.trainer.checkpoint import CHECKPOINT
from logitsieve.training.trainer.config import TrainConfig
from logitsieve.training.trainer.corpus import FOLDER
from logitsieve.training.trainer.files import replace_bytes
from logitsieve.training.trainer.heads import read_options
from logitsieve.types.errors import InvalidRequest

SETTINGS = "settings.json"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The text, what to judge by (None: the end of the text), and all options."""

    text: Path
    valid: Path | None = None
    config: TrainConfig

    def to_json(self, *, names_only: bool = False) -> dict[str, Any]:
        """The same as words, numbers and lists; files by their paths, or by their names alone."""
        files = {
            field: path and (path.name if names_only else str(path.resolve()))
            for field, path in (("text", self.text), ("valid", self.valid))
        }
        return {**asdict(self.config), **files}

    @classmethod
    def load(cls, folder: Path) -> Self:
        """The settings of the run in a folder; InvalidRequest where there is none."""
        file = folder / SETTINGS
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            text, valid = Path(found.pop("text")), found.pop("valid")
            options: dict[str, Any] = {
                name: tuple(value) if isinstance(value, list) else value
                for name, value in found.items()
            }
            config = TrainConfig(**options)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise InvalidRequest("resume", f"{file} ({error})", "a folder with a run") from error
        return cls(text=text, valid=valid and Path(valid), config=config)


def begin(folder: Path, settings: Settings) -> None:
    """Lay down a new run; InvalidRequest where the folder holds one that has a checkpoint."""
    if (folder / CHECKPOINT).exists():
        raise InvalidRequest("out", f"{folder}, which holds a run", "another folder, or --resume")
    read_options(settings.config.loss, settings.config.loss_option)
    for name, path in (("text", settings.text), ("valid", settings.valid)):
        if path is not None and not path.is_file():
            raise InvalidRequest(name, path, "a text file, or one that is gzipped")
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / FOLDER, ignore_errors=True)
    write_json(folder / SETTINGS, settings.to_json())


def write_json(file: Path, value: dict[str, Any]) -> None:
    """One JSON document, there at once."""
    replace_bytes(file, (json.dumps(value, indent=2) + "\n").encode("utf-8"))
