"""A language model trained by the package's trainer, its perplexity kept by step and second."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from time import process_time
from typing import Any

from benchmarks.training.entrants import Entrant
from benchmarks.training.stages import Stages
from logitsieve.training.trainer.config import TrainConfig
from logitsieve.training.trainer.corpus import Corpus
from logitsieve.training.trainer.trainer import Trainer
from logitsieve.utils.options import Progress

LOOKS = 8  # validations of a run
Each = Callable[[Trainer], None]


def config_of(entrant: Entrant, **options: Any) -> TrainConfig:
    """The options of a run with that loss; its weights are its own, so that no method is limited
    to those that can be tied."""
    return TrainConfig(
        loss=entrant.loss, loss_option=entrant.options, tied=False, epochs=1_000, **options
    )


def settings_of(config: TrainConfig, corpus: Corpus) -> dict[str, Any]:
    """What decides a run, for its name."""
    words = {"train": len(corpus.train), "valid": len(corpus.valid)}
    return {**asdict(config), "classes": len(corpus.vocabulary), "text": words}


def train(
    config: TrainConfig, corpus: Corpus, progress: Progress, looks: int = LOOKS
) -> tuple[dict[str, Any], Trainer]:
    """Perplexities under the full softmax, CPU seconds of the steps alone; and the trained model.

    `us` are means over the steps: what is drawn, what is indexed, all the rest.
    TrainingFailed where it diverges.
    """
    trainer = Trainer(config, corpus)
    due = {max(1, round(trainer.total * (look + 1) / looks)) for look in range(looks)}
    course, seconds, clock = [], 0.0, Stages(trainer.head)
    for step in range(1, trainer.total + 1):
        begun = process_time()
        trainer.step()
        seconds += process_time() - begun
        progress("steps of this run", step, trainer.total)
        if step in due:
            course.append(_look(trainer, seconds))
    inside = {name: clock.ns[name] / 1000 / trainer.total for name in ("proposal", "index")}
    rest = seconds / trainer.total * 1e6 - sum(inside.values())
    found = {"course": course, "seconds": seconds, "us": {**inside, "rest": rest}}
    return {**found, "perplexity": course[-1]["perplexity"]}, trainer


def _look(trainer: Trainer, seconds: float) -> dict[str, float]:
    loss = trainer.validate()
    assert loss is not None
    return {
        "step": trainer.steps,
        "words": trainer.words,
        "seconds": seconds,
        "perplexity": math.exp(min(loss, 700.0)),
    }
