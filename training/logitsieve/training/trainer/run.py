"""A training as a folder, which may be killed at any time and resumed.

| file | holds |
|---|---|
| `settings.json` | every option, the texts among them |
| `train.npy`, `valid.npy`, `counts.npy`, `vocab.txt` | the texts as ids, mapped; the words by id |
| `checkpoint.pt` | all that the next step depends on |
| `model.safetensors` | the best model so far on the held-out text |
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.config import TrainConfig
from logitsieve.training.losses.registry import read_options
from logitsieve.training.trainer.corpus import Corpus, encode
from logitsieve.training.trainer.trainer import Trainer, TrainingStatus
from logitsieve.utils.options import Progress, no_progress

SETTINGS, CHECKPOINT = "settings.json", "checkpoint.pt"


def begin(folder: Path, config: TrainConfig, *, progress: Progress = no_progress) -> None:
    """Begin a run: encode its text, and write its options when that is done.

    InvalidRequest if the folder holds a checkpoint or files of no run, or for a wrong option.
    """
    if (folder / CHECKPOINT).exists():
        raise InvalidRequest("out", f"{folder}, which holds a run", "another folder, or --resume")
    if folder.exists() and any(folder.iterdir()):
        load_config(folder, "out")
    read_options(config.loss, config.loss_option)
    corpus = encode(config, progress)
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / SETTINGS
    settings.unlink(missing_ok=True)
    corpus.save(folder)
    settings.write_text(json.dumps(asdict(config), indent=2, default=str) + "\n", encoding="utf-8")


def load_config(folder: Path, field: str = "resume") -> TrainConfig:
    """Return the options of the run in a folder; InvalidRequest names `field` without one."""
    file = folder / SETTINGS
    try:
        saved = json.loads(file.read_text(encoding="utf-8"))
        paths = {name: saved[name] and Path(saved[name]) for name in ("text", "valid")}
        return TrainConfig(**{**saved, **paths, "loss_option": tuple(saved["loss_option"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(field, f"{file} ({error})", "a folder with a run") from error


def train(
    folder: Path,
    *,
    show: Callable[[TrainingStatus], None] = lambda status: None,
    stop: Callable[[], bool] = lambda: False,
    to_be_served: bool = False,
) -> TrainingStatus:
    """Train the rest of the run in `folder`, from its checkpoint on.

    `stop` is called before every step: once it is True, all is saved and train returns. `show` gets
    the status, always the same object, after each step and each validation. InvalidRequest if the
    run is `to_be_served` and the loss trains no softmax of h.w + b.
    """
    config = load_config(folder)
    trainer = Trainer(config, Corpus.open(folder))
    status, unservable = trainer.status, trainer.loss.unservable
    if to_be_served and unservable is not None:
        allowed = "a loss that trains a softmax of logits; any other cannot be served"
        raise InvalidRequest("loss", f"{config.loss} ({unservable})", allowed)
    checkpoint = folder / CHECKPOINT
    if checkpoint.exists():
        trainer.load(checkpoint)
    while status.steps < status.total and not stop():
        trainer.step()
        show(status)
        due = status.validated + (config.valid_every or status.per_epoch)
        if status.steps in (due, status.total):
            status.validated, status.perplexity = status.steps, trainer.validate()
            if status.perplexity < status.best_perplexity:
                status.best_perplexity = status.perplexity
                if unservable is None:
                    trainer.language_model().save(folder)
            show(status)
        if status.steps % config.checkpoint_every == 0:
            trainer.save(checkpoint)
    trainer.save(checkpoint)
    return status
