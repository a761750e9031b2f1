import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from logitsieve.api.errors import InvalidRequest, TrainingFailed
from logitsieve.training import LOSSES
from logitsieve.training.trainer import Corpus, TrainConfig, Trainer, Vocabulary
from logitsieve.training.trainer.corpus import TextStreams
from logitsieve.training.trainer.trainer import VALID_STREAMS, lr_factor
from tests.refusals import refused

WORDS = ("<unk>", "<eos>", *(f"w{number}" for number in range(30)))


@pytest.fixture
def corpus() -> Corpus:
    """Each word is followed by one of the next three."""
    steps = np.random.default_rng(0).integers(1, 4, 4_000)
    ids = (np.cumsum(steps) % 32).astype(np.int32)
    counts = np.bincount(ids[:3_600], minlength=32)
    return Corpus(ids[:3_600], ids[3_600:], counts, Vocabulary(WORDS))


def options(**more: Any) -> TrainConfig:
    small = {"dim": 16, "batch_size": 4, "bptt": 10, "epochs": 1, "layers": 1, "lr": 0.01}
    return TrainConfig(**{**small, **more})


def trained(trainer: Trainer, steps: int) -> list[float]:
    return [trainer.step() for _ in range(steps)]


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("tied", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_every_loss_learns(corpus: Corpus, name: str, tied: bool) -> None:
    tied = tied and name != "d-softmax"
    trainer = Trainer(options(loss=name, tied=tied, dropout=0.0), corpus)
    before = trainer.validate()
    trained(trainer, 80)
    assert trainer.validate() < 0.9 * before


@pytest.mark.parametrize("name", LOSSES)
def test_a_loaded_trainer_goes_on_bit_for_bit(tmp_path: Path, corpus: Corpus, name: str) -> None:
    config = options(loss=name, index_every=3, tied=name != "d-softmax")
    whole = Trainer(config, corpus)
    expected = trained(whole, 12)
    first = Trainer(config, corpus)
    assert trained(first, 7) == expected[:7]
    first.save(tmp_path / "checkpoint.pt")
    second = Trainer(config, corpus)
    trained(second, 2)  # what it did before does not matter
    second.load(tmp_path / "checkpoint.pt")
    assert trained(second, 5) == expected[7:]
    for name_, tensor in whole.model.state_dict().items():
        assert tensor.equal(second.model.state_dict()[name_])


@pytest.mark.parametrize("name", ["full", "uniform", "rf"])
def test_what_is_served_is_what_was_judged(corpus: Corpus, name: str) -> None:
    trainer = Trainer(options(loss=name), corpus)
    trained(trainer, 30)
    model = trainer.language_model()
    assert model.normalized == (name == "rf")
    inputs, targets = TextStreams(corpus.valid, VALID_STREAMS).read(0, 49)
    logits, _ = model(inputs)
    loss = cross_entropy(logits.flatten(0, 1), targets.flatten()).item()
    assert trainer.validate() == pytest.approx(math.exp(loss), rel=1e-3)


def test_epochs_words_and_the_rate_say_how_long(corpus: Corpus) -> None:
    assert Trainer(options(), corpus).status.total == 3_599 // 4 // 10
    assert Trainer(options(epochs=3), corpus).status.total == 3 * 89
    assert Trainer(options(epochs=3, words=81), corpus).status.total == 3
    config = TrainConfig(warm_up=0.1)
    rates = [lr_factor(config, step, 100) for step in range(100)]
    assert rates[:10] == pytest.approx([0.1 * step for step in range(1, 11)])
    assert rates[10] == 1
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert 0 < rates[-1] < 0.02


def test_a_gradient_that_is_not_finite_moves_nothing(corpus: Corpus) -> None:
    trainer: Any = Trainer(options(loss="full", tied=False), corpus)
    torch.nn.init.constant_(trainer.loss.classes.weight, 3e38)
    before = [parameter.clone() for parameter in trainer.model.parameters()]
    with pytest.raises(TrainingFailed, match="step 0 is not finite"):
        trainer.step()
    assert all(map(torch.equal, before, trainer.model.parameters()))
    assert trainer.status.steps == 0


def test_a_model_that_is_not_finite_fails(corpus: Corpus) -> None:
    trainer = Trainer(options(loss="full"), corpus)
    torch.nn.init.constant_(next(trainer.model.lstm.parameters()), math.nan)
    for act in (trainer.step, trainer.validate):
        with pytest.raises(TrainingFailed, match="the LSTM's output of step 0 is not finite"):
            act()


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"batch_size": 400}, "text"),
        ({"device": "cuda:99"}, "device"),
        ({"words": 2.5}, "words"),
        ({"loss": "d-softmax"}, "embedding"),
        ({"loss": "uniform", "loss_option": ("n_sampled=0",)}, "n_sampled"),
    ],
)
def test_what_does_not_go_together(corpus: Corpus, more: dict[str, Any], field: str) -> None:
    with refused(field):
        Trainer(options(**more), corpus)


def test_each_epoch_begins_elsewhere(corpus: Corpus) -> None:
    starts = []
    for seed in range(2):
        trainer = Trainer(options(epochs=3, words=10_000, seed=seed), corpus)
        for epoch in range(3):
            trainer.status.steps = epoch * trainer.status.per_epoch
            starts.append(tuple(trainer._batch()[0][0].tolist()))
    assert len(set(starts)) == 6


def test_damaged_checkpoints_and_code_are_refused(tmp_path: Path, corpus: Corpus) -> None:
    trainer, file = Trainer(options(), corpus), tmp_path / "checkpoint.pt"
    trainer.save(file)
    content, code = file.read_bytes(), io.BytesIO()
    torch.save({"status": Path("anything")}, code)
    for damaged in (content[: len(content) // 2], b"", b"nothing of the kind", code.getvalue()):
        file.write_bytes(damaged)
        with pytest.raises(InvalidRequest, match="a whole checkpoint"):
            trainer.load(file)
