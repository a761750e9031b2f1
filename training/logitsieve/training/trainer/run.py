"""A training as a folder, which may be killed at any time and resumed.

| file | holds |
|---|---|
| `settings.json` | the text's name and every option |
| `corpus/`, `vocab.txt` | the text as ids, mapped; the words by id |
| `checkpoint.pt` | all that the next step depends on |
| `model.safetensors` | the best model so far on the held-out text |
| `log.csv`, `valid.csv` | the course of the training |
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.config import TrainConfig
from logitsieve.training.trainer.corpus import FOLDER, Corpus, encode
from logitsieve.training.trainer.files import (
    TRAINED,
    VALIDATED,
    Log,
    load_checkpoint,
    save_checkpoint,
)
from logitsieve.training.trainer.settings import Settings
from logitsieve.training.trainer.trainer import Trainer
from logitsieve.utils.options import Progress, no_progress

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


def perplexity_of(loss: float) -> float:
    """Return e^loss of a loss in nats; the largest float for one that diverged."""
    return math.exp(min(loss, LARGEST_LOSS))


def prepare(folder: Path, *, progress: Progress = no_progress) -> None:
    """Encode the text of the run in `folder`, unless that was done."""
    settings = Settings.load(folder)
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
    show: Callable[[TrainingStatus], None] = lambda status: None,
    stop: Callable[[], bool] = lambda: False,
    to_be_served: bool = False,
) -> Outcome:
    """Train what is left of the run in `folder`, from its checkpoint on.

    `stop` is called after every step: once it returns True, all is saved and train returns.
    `progress` gets the stages besides training, `show` each step and validation. InvalidRequest if
    it is `to_be_served` and the loss trains no softmax of h.w + b.
    """
    prepare(folder, progress=progress)
    run = _Run(folder, Settings.load(folder).config)
    if to_be_served and (kind := run.trainer.loss.unservable) is not None:
        allowed = "a loss that trains a softmax of logits; any other cannot be served"
        raise InvalidRequest("loss", f"{run.config.loss} ({kind})", allowed)
    while True:
        if run.validation_is_due():
            run.validate(progress)
            show(run.status(perplexity_of(run.course.last)))
        if stop() or run.trainer.steps == run.trainer.total:
            break
        run.step()
        show(run.status())
        if run.trainer.steps % run.config.checkpoint_every == 0:
            run.save()
    run.save()
    return run.outcome()


@dataclass
class _Course:
    """Statistics of a run, saved with its checkpoint. Losses in nats, seconds of steps."""

    seconds: float = 0.0
    best: float = math.inf
    last: float = math.inf  # by the last validation
    validated: int = 0
    shown: float = 0.0
    # Since the last line of the log:
    loss: float = 0.0
    steps: int = 0
    begun: float = 0.0


class _Run:
    def __init__(self, folder: Path, config: TrainConfig) -> None:
        self.folder, self.config = folder, config
        self.trainer, self.course = Trainer(config, Corpus.open(folder)), _Course()
        if (state := load_checkpoint(folder)) is not None:
            self.trainer.load_state_dict(state["trainer"])
            self.course = _Course(**state["course"])
        self.trained = Log(folder / TRAINED, self.trainer.steps)
        self.validated = Log(folder / VALIDATED, self.course.validated)

    def step(self) -> None:
        course, trainer, begun = self.course, self.trainer, time.monotonic()
        loss, norm = trainer.step()
        course.seconds += time.monotonic() - begun
        course.loss += loss
        course.steps += 1
        course.shown += (loss - course.shown) / min(trainer.steps, SMOOTH)
        if trainer.steps % self.config.log_every == 0 or trainer.steps == trainer.total:
            speed = self._speed(course.steps, course.seconds - course.begun)
            mean = course.loss / course.steps
            self.trained.write([*self._place(), speed, mean, trainer.lr, norm])
            course.loss, course.steps, course.begun = 0.0, 0, course.seconds

    def validation_is_due(self) -> bool:
        steps, every = self.trainer.steps, self.config.valid_every or self.trainer.per_epoch
        at_one = steps % every == 0 or steps == self.trainer.total
        return at_one and steps > self.course.validated

    def validate(self, progress: Progress) -> None:
        course, trainer = self.course, self.trainer
        course.last, course.validated = trainer.validate(progress), trainer.steps
        if course.last < course.best:
            course.best = course.last
            if trainer.loss.unservable is None:
                trainer.language_model().save(self.folder)
        self.validated.write([*self._place(), course.last, perplexity_of(course.last)])

    def save(self) -> None:
        state = {"trainer": self.trainer.state_dict(), "course": asdict(self.course)}
        save_checkpoint(self.folder, state)

    def status(self, perplexity: float | None = None) -> TrainingStatus:
        trainer, course = self.trainer, self.course
        speed = self._speed(trainer.steps, course.seconds)
        place = trainer.steps, trainer.total, trainer.epoch
        return TrainingStatus(*place, course.shown, speed, perplexity)

    def outcome(self) -> Outcome:
        best, trainer = self.course.best, self.trainer
        perplexity = None if math.isinf(best) else perplexity_of(best)
        finished = self.course.validated == trainer.total
        return Outcome(trainer.steps, trainer.total, finished, perplexity)

    def _place(self) -> list[float]:
        trainer = self.trainer
        return [trainer.steps, trainer.epoch, trainer.words, round(self.course.seconds, 3)]

    def _speed(self, steps: int, seconds: float) -> float:
        return steps * self.config.rows / max(seconds, 1e-9)
