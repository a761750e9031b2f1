"""The options of a training, and the file of a run that holds them: all that `resume` needs."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self, get_args

import torch

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.trainer.corpus import FOLDER
from logitsieve.training.trainer.files import CHECKPOINT, COLUMNS, TENSORBOARD, replace_bytes
from logitsieve.training.trainer.language_model import WEIGHTS_FILE
from logitsieve.training.trainer.losses import read_options
from logitsieve.training.trainer.vocabulary import VOCABULARY_FILE
from logitsieve.utils.options import check_range, option

SETTINGS = "settings.json"
CONTEXTS, HELD_OUT = "contexts", "heldout"  # folders of contexts captured after a training


Optimizer = Literal["adamw", "adagrad", "sgd"]
HeadOptimizer = Literal["auto", "adamw", "sparse-adam", "adagrad", "sgd"]
Schedule = Literal["cosine", "linear", "constant"]

ADAGRAD_LR = 0.2  # its steps shrink as gradients add up

CHOICES = {"optimizer": Optimizer, "head_optimizer": HeadOptimizer, "schedule": Schedule}


def choice(default: Any, help: str) -> Any:
    """A field with its help and no range."""
    return field(default=default, metadata={"help": help})


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Options of model, optimization and reporting; InvalidRequest for a value out of range.

    A field for every flag of `logitsieve train` but its files.
    """

    loss: str = choice("full", "Loss: a name that --losses lists.")
    loss_option: tuple[str, ...] = choice(
        (), "An option of the loss as NAME=VALUE; --losses lists them."
    )
    vocabulary: int = option(10_000, "Words in the vocabulary at most, V.", 2, 2**31 - 1)
    dim: int = option(200, "Hidden size, D.", 1, 1 << 16)
    layers: int = option(2, "LSTM layers.", 1, 64)
    tied: bool = choice(True, "Whether the softmax's matrix is the input embedding too.")
    dropout: float = option(0.2, "Share dropped between layers.", 0, 0.99)
    epochs: int = option(10, "Times through the text.", 1, 1_000_000)
    words: int | None = option(None, "Words trained on at most; unset: all epochs.", 1, 2**62)
    streams: int = option(32, "Parallel streams of text.", 1, 1 << 20)
    steps: int = option(35, "Words back-propagated through, in each stream.", 1, 1 << 20)
    optimizer: Optimizer = field(default="adamw", metadata={"help": "Optimizer of the LSTM."})
    head_optimizer: HeadOptimizer = field(
        default="adagrad",
        metadata={
            "help": "Optimizer of the embedding and the softmax; auto: sparse-adam for losses with"
            " sparse gradients, else adamw, which learn more slowly."
        },
    )
    lr: float = option(3e-3, "Highest learning rate.", 1e-9, 1e3)
    head_lr: float | None = option(
        None,
        f"Highest learning rate of that one; unset: {ADAGRAD_LR} for adagrad, else --lr.",
        1e-9,
        1e3,
    )
    weight_decay: float = option(0.01, "Weight decay of adamw.", 0, 10)
    schedule: Schedule = field(
        default="cosine", metadata={"help": "How the learning rate falls, down to nothing."}
    )
    warm_up: float = option(0.02, "Share of the steps in which the learning rate rises.", 0, 1)
    clip: float = option(0.5, "Highest norm of the gradient.", 1e-9, 1e9)
    index_every: int = option(
        50, "Steps after which a loss that has an index brings it up to date.", 1, 2**31
    )
    index_growth: float = option(1.0, "Factor by which that period grows each time.", 1, 100)
    valid_share: float = option(
        0.1, "Share of the text that is held out, at its end, without --valid.", 1e-6, 0.9
    )
    valid_every: int | None = option(
        None, "Steps between validations; unset: once an epoch.", 1, 2**62
    )
    bfloat16: bool = choice(False, "Whether the LSTM multiplies in bfloat16.")
    device: str = choice("cpu", "Where: cpu, or cuda.")
    threads: int = option(1, "CPU threads.", 1, 1024)
    seed: int = option(1, "Seed of weights, dropout, streams and negatives.", 0, 2**31 - 1)
    log_every: int = option(50, "Steps between lines of the log.", 1, 2**62)
    checkpoint_steps: int | None = option(
        None, "Steps between checkpoints, besides those by time.", 1, 2**62
    )
    checkpoint_minutes: float = option(10.0, "Minutes between checkpoints.", 0, 1e6)

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name in CHOICES and value not in (words := get_args(CHOICES[item.name])):
                raise InvalidRequest(item.name, value, ", ".join(words))
            if "low" in item.metadata:
                check_range(item.name, value, item.type, item.metadata)

    @property
    def lr_of_loss(self) -> float:
        if self.head_lr is not None:
            return self.head_lr
        return ADAGRAD_LR if self.head_optimizer == "adagrad" else self.lr

    @property
    def rows(self) -> int:
        return self.streams * self.steps


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
    check_device(settings.config.device)
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
