"""A training as a folder, which may be killed at any time and resumed.

| file | holds |
|---|---|
| `settings.json` | the text's name and every option |
| `corpus/`, `vocab.txt` | the text as ids, mapped; the words by id |
| `checkpoint.pt` | all that the next step depends on |
| `model.safetensors` | the best model so far on the held-out text |
| `log.csv`, `valid.csv`, `tensorboard/` | the course of the training |
| `training.json` | at the end: options, sizes, time, perplexities |
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.trainer.corpus import FOLDER, Corpus, encode
from logitsieve.training.trainer.files import (
    TRAINED,
    VALIDATED,
    Logs,
    load_checkpoint,
    read_log,
    save_checkpoint,
)
from logitsieve.training.trainer.settings import Settings, alone, write_json
from logitsieve.training.trainer.trainer import Trainer
from logitsieve.utils.options import Progress, no_progress

REPORT = "training.json"
LARGEST_LOSS = math.log(sys.float_info.max)
SMOOTH = 100  # steps that the displayed loss averages over


class TrainingStatus(NamedTuple):
    """Progress after a step; `perplexity` only after a validation."""

    steps: int
    total: int
    epoch: int
    loss: float
    words_per_second: float
    perplexity: float | None = None


class Outcome(NamedTuple):
    """Progress of a run, and its best perplexity on the held-out text so far, if any.

    `finished`: neither a step nor a validation is left.
    """

    steps: int
    total: int
    finished: bool
    perplexity: float | None


Show = Callable[[TrainingStatus], None]


def show_nothing(status: TrainingStatus) -> None:
    """Ignore the status: the default callback."""


def perplexity_of(loss: float) -> float:
    """e^loss of a loss in nats; the largest float for one that diverged."""
    return math.exp(min(loss, LARGEST_LOSS))


def prepare(folder: Path, *, progress: Progress = no_progress) -> None:
    """Encode the text of the run in `folder`, unless that was done."""
    settings = Settings.load(folder)
    with alone(folder):
        if (folder / FOLDER).exists():
            return
        encode(
            folder,
            settings.text,
            settings.valid,
            size=settings.config.vocabulary,
            valid_share=settings.config.valid_share,
            progress=progress,
        )


def train(
    folder: Path,
    *,
    progress: Progress = no_progress,
    show: Show = show_nothing,
    stop: Callable[[], bool] = lambda: False,
    to_be_served: bool = False,
) -> Outcome:
    """Train what is left of the run in `folder`, from its checkpoint on.

    `stop` is called after every step and during validations: once it returns True, all is saved and
    train returns. `progress` gets the stages besides training, `show` each step and validation.
    InvalidRequest if it is `to_be_served` and the loss trains no softmax of h.w + b, or if another
    process works on the run.
    """
    prepare(folder, progress=progress)
    settings = Settings.load(folder)
    with alone(folder):
        run = _Run(folder, settings, progress, show)
        if to_be_served and run.trainer.loss.unservable is not None:
            allowed = "a loss that trains a softmax of logits; any other cannot be served"
            got = f"{settings.config.loss} ({run.trainer.loss.unservable})"
            raise InvalidRequest("loss", got, allowed)
        with closing(Logs(folder, run.trainer.steps, run.course.validated)) as logs:
            run.go(logs, stop)
    return run.outcome()


@dataclass
class _Course:
    """Statistics of a run, saved with its checkpoint. Losses in nats, seconds of steps."""

    seconds: float = 0.0
    best: float = math.inf
    validated: int = 0
    shown: float = 0.0
    # Since the last line of the log:
    loss: float = 0.0
    steps: int = 0
    begun: float = 0.0


class _Run:
    def __init__(self, folder: Path, settings: Settings, progress: Progress, show: Show) -> None:
        self.folder, self.settings, self.config = folder, settings, settings.config
        self.progress, self.show = progress, show
        self.trainer = Trainer(self.config, Corpus.open(folder))
        self.course = _Course()
        if (state := load_checkpoint(folder)) is not None:
            self.trainer.load_state_dict(state["trainer"])
            self.course = _Course(**state["course"])
        self.saved_at, self.saved_steps = time.monotonic(), self.trainer.steps

    def go(self, logs: Logs, stop: Callable[[], bool]) -> None:
        trainer = self.trainer
        while True:
            if self._validation_is_due():
                self._validate(logs, stop)
            if stop() or trainer.steps == trainer.total:
                break
            self._step(logs)
            if self._checkpoint_is_due():
                self._save()
        self._save()
        if self.finished:
            self._report()

    @property
    def finished(self) -> bool:
        return self.course.validated == self.trainer.total

    def outcome(self) -> Outcome:
        best = self.course.best
        perplexity = None if math.isinf(best) else perplexity_of(best)
        return Outcome(self.trainer.steps, self.trainer.total, self.finished, perplexity)

    def _step(self, logs: Logs) -> None:
        course, trainer, begun = self.course, self.trainer, time.monotonic()
        loss, norm = trainer.step()
        course.seconds += time.monotonic() - begun
        course.loss += loss
        course.steps += 1
        course.shown += (loss - course.shown) / min(trainer.steps, SMOOTH)
        self._show()
        if trainer.steps % self.config.log_every == 0 or trainer.steps == trainer.total:
            row = {
                "words_per_second": self._speed(course.steps, course.seconds - course.begun),
                "loss": course.loss / course.steps,
                "lr": trainer.lr,
                "gradient": norm,
            }
            logs.write(TRAINED, {**self._place(), **row})
            course.loss, course.steps, course.begun = 0.0, 0, course.seconds

    def _validate(self, logs: Logs, stop: Callable[[], bool]) -> None:
        loss = self.trainer.validate(stop, self.progress)
        if loss is None:
            return
        if loss < self.course.best:
            self.course.best = loss
            if self.trainer.loss.unservable is None:
                self.trainer.language_model().save(self.folder)
        self.course.validated = self.trainer.steps
        perplexity = perplexity_of(loss)
        logs.write(VALIDATED, {**self._place(), "loss": loss, "perplexity": perplexity})
        self._show(perplexity)

    def _validation_is_due(self) -> bool:
        steps, every = self.trainer.steps, self.config.valid_every or self.trainer.per_epoch
        at_one = steps % every == 0 or steps == self.trainer.total
        return at_one and steps > self.course.validated

    def _checkpoint_is_due(self) -> bool:
        every = self.config.checkpoint_steps
        by_steps = every is not None and self.trainer.steps - self.saved_steps >= every
        return by_steps or time.monotonic() - self.saved_at >= 60 * self.config.checkpoint_minutes

    def _save(self) -> None:
        state = {"trainer": self.trainer.state_dict(), "course": asdict(self.course)}
        save_checkpoint(self.folder, state)
        self.saved_at, self.saved_steps = time.monotonic(), self.trainer.steps

    def _report(self) -> None:
        validations = read_log(self.folder / VALIDATED)
        corpus = self.trainer.corpus
        report = {
            "settings": self.settings.to_json(names_only=True),
            "words": {"train": len(corpus.train), "valid": len(corpus.valid)},
            "vocabulary": len(corpus.vocabulary),
            "steps": self.trainer.steps,
            "seconds": round(self.course.seconds),
            "valid_perplexity": [round(each["perplexity"], 2) for each in validations],
        }
        write_json(self.folder / REPORT, report)

    def _place(self) -> dict[str, float]:
        trainer = self.trainer
        where = {"step": trainer.steps, "epoch": trainer.epoch, "words": trainer.words}
        return {**where, "seconds": round(self.course.seconds, 3)}

    def _show(self, perplexity: float | None = None) -> None:
        trainer, course = self.trainer, self.course
        speed = self._speed(trainer.steps, course.seconds)
        place = trainer.steps, trainer.total, trainer.epoch
        self.show(TrainingStatus(*place, course.shown, speed, perplexity))

    def _speed(self, steps: int, seconds: float) -> float:
        return steps * self.config.rows / max(seconds, 1e-9)
