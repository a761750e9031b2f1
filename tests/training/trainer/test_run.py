from __future__ import annotations

import csv
import math
import signal
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.trainer import (
    LanguageModel,
    TrainingStatus,
    begin,
    train,
)
from logitsieve.training.trainer.files import TRAINED, VALIDATED, load_checkpoint
from logitsieve.training.trainer.run import perplexity_of
from tests.training.trainer import killed_training
from tests.training.trainer.ring import settings

CLOCK = ("seconds", "words_per_second")  # columns that no two runs share


def read_log(file: Path) -> list[dict[str, float]]:
    with file.open(encoding="utf-8", newline="") as stream:
        return [{k: float(v) for k, v in row.items()} for row in csv.DictReader(stream)]


def course(folder: Path) -> list[list[dict[str, float]]]:
    """The lines of both logs without what a clock said."""
    return [
        [{k: v for k, v in row.items() if k not in CLOCK} for row in read_log(folder / name)]
        for name in (TRAINED, VALIDATED)
    ]


def assert_same(one: Any, other: Any) -> None:
    """Checkpoints equal bit for bit, but for the seconds that they took."""
    if isinstance(one, torch.Tensor):
        assert one.equal(other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one.keys() - {"seconds", "begun"}:
            assert_same(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        for pair in zip(one, other, strict=True):
            assert_same(*pair)
    else:
        assert one == other


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A run that nothing stopped."""
    begin(tmp_path / "whole", settings(tmp_path))
    train(tmp_path / "whole")
    return tmp_path / "whole"


def test_a_run_writes_what_it_says(whole: Path) -> None:
    trained, validated = course(whole)
    assert [row["step"] for row in trained] == [5, 10, 15, 20, 25, 30, 35, 38]
    assert [row["step"] for row in validated] == [7, 14, 21, 28, 35, 38]
    assert [row["epoch"] for row in validated] == [1, 1, 2, 2, 2, 2]
    assert min(row["perplexity"] for row in validated) < validated[0]["perplexity"]
    assert {path.name for path in whole.iterdir()} == {
        *("settings.json", "corpus", "vocab.txt", "checkpoint.pt", "model.safetensors"),
        *("log.csv", "valid.csv"),
    }


KILLED = [("uniform", 8), ("full", 1), ("rf", 20)]


@pytest.mark.system
@pytest.mark.parametrize(
    ("loss", "step"),
    [
        pytest.param(*each, marks=() if each in KILLED else pytest.mark.exhaustive)
        for each in product(("uniform", "full", "rf"), (1, 8, 20))
    ],
)
def test_a_run_that_is_killed_goes_on_bit_for_bit(tmp_path: Path, loss: str, step: int) -> None:
    made = settings(tmp_path, loss=loss, loss_option=(), index_every=4)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        begin(folder, made)
    train(whole)
    program = [sys.executable, killed_training.__file__, str(killed), str(step)]
    done = subprocess.run(program, cwd=Path(__file__).parents[3], timeout=250)
    assert done.returncode == -signal.SIGKILL
    assert train(killed).finished
    assert_same(load_checkpoint(whole), load_checkpoint(killed))
    assert course(whole) == course(killed)
    for name in ("model.safetensors", "vocab.txt", "corpus/train.npy"):
        assert (whole / name).read_bytes() == (killed / name).read_bytes()


def after(shown: list[TrainingStatus], last: int) -> Callable[[], bool]:
    return lambda: bool(shown) and shown[-1].steps >= last


def test_stopping_saves_and_going_on_ends_the_same(tmp_path: Path, whole: Path) -> None:
    folder, shown = tmp_path / "stopped", list[TrainingStatus]()
    begin(folder, settings(tmp_path, checkpoint_every=1000))
    for last in (1, 7, 13, 38):  # 7: before the next step, after a validation
        outcome = train(folder, show=shown.append, stop=after(shown, last))
        assert (outcome.steps, outcome.finished) == (last, last == 38)
    assert train(folder).finished
    assert course(folder) == course(whole)
    assert (folder / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    steps = [status.steps for status in shown if status.perplexity is None]
    assert steps == list(range(1, 39))


def test_the_best_model_is_kept(tmp_path: Path) -> None:
    rates: dict[str, Any] = {"lr": 0.5, "head_lr": 3.0}
    begin(tmp_path / "run", settings(tmp_path, valid_every=1, **rates))
    best = train(tmp_path / "run").perplexity
    perplexities = [row["perplexity"] for row in read_log(tmp_path / "run" / VALIDATED)]
    assert best == pytest.approx(min(perplexities))
    assert perplexities[-1] > min(perplexities)
    assert LanguageModel.load(tmp_path / "run").output.out_features == 10


def test_a_finished_run_stays_as_it_is(whole: Path) -> None:
    before = course(whole)
    outcome = train(whole)
    assert outcome.finished
    assert outcome.perplexity is not None
    assert course(whole) == before


def test_a_loss_that_diverged_has_a_perplexity() -> None:
    assert perplexity_of(2.0) == pytest.approx(math.exp(2))
    assert math.isfinite(perplexity_of(1e4))
    assert math.isnan(perplexity_of(math.nan))


@pytest.mark.parametrize(("loss", "options"), [("quadratic", ()), ("lns", ("corrected=false",))])
def test_a_loss_that_cannot_be_served(tmp_path: Path, loss: str, options: tuple[str, ...]) -> None:
    begin(tmp_path / "run", settings(tmp_path, loss=loss, loss_option=options))
    with pytest.raises(InvalidRequest, match=f"loss: got {loss}"):
        train(tmp_path / "run", to_be_served=True)
    assert train(tmp_path / "run").finished
    assert not (tmp_path / "run" / "model.safetensors").exists()
