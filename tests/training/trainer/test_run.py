import signal
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.trainer import (
    LanguageModel,
    TrainConfig,
    TrainingStatus,
    begin,
    load_config,
    train,
)
from tests.refusals import refused
from tests.training.trainer import killed_training
from tests.training.trainer.ring import ring_config


def assert_same(one: Any, other: Any) -> None:
    """Checkpoints equal bit for bit, but for the seconds that they took."""
    if isinstance(one, torch.Tensor):
        assert one.equal(other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one.keys() - {"seconds"}:
            assert_same(one[key], other[key])
    elif isinstance(one, (list, tuple)):
        for pair in zip(one, other, strict=True):
            assert_same(*pair)
    else:
        assert one == other


def assert_same_runs(one: Path, other: Path) -> None:
    assert_same(*(torch.load(each / "checkpoint.pt") for each in (one, other)))
    for name in ("model.safetensors", "vocab.txt", "train.npy"):
        assert (one / name).read_bytes() == (other / name).read_bytes()


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A run that nothing stopped."""
    begin(tmp_path / "whole", ring_config(tmp_path))
    train(tmp_path / "whole")
    return tmp_path / "whole"


def test_a_run_shows_its_steps_and_validations(tmp_path: Path) -> None:
    shown, folder = list[TrainingStatus](), tmp_path / "run"
    begin(folder, ring_config(tmp_path))
    train(folder, show=lambda status: shown.append(replace(status)))
    validated = [status for status in shown if status.validated == status.steps]
    steps = [status.steps for status in shown if status.validated < status.steps]
    assert steps == list(range(1, 39))
    assert [status.steps for status in validated] == [7, 14, 21, 28, 35, 38]
    assert [status.epoch for status in validated] == [1, 1, 2, 2, 2, 2]
    assert validated[-1].best_perplexity < validated[0].perplexity
    assert {path.name for path in folder.iterdir()} == {
        *("settings.json", "train.npy", "valid.npy", "counts.npy", "vocab.txt"),
        *("checkpoint.pt", "model.safetensors"),
    }


@pytest.mark.system
@pytest.mark.parametrize(
    ("loss", "step"),
    [
        pytest.param(*each, marks=() if each == ("rf", 8) else pytest.mark.exhaustive)
        for each in product(("uniform", "full", "rf"), (1, 8, 20))
    ],
)
def test_a_run_that_is_killed_goes_on_bit_for_bit(tmp_path: Path, loss: str, step: int) -> None:
    config = ring_config(tmp_path, loss=loss, loss_option=(), index_every=4)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        begin(folder, config)
    train(whole)
    program = [sys.executable, killed_training.__file__, str(killed), str(step)]
    done = subprocess.run(program, cwd=Path(__file__).parents[3], timeout=250)
    assert done.returncode == -signal.SIGKILL
    train(killed)
    assert_same_runs(whole, killed)


def test_a_run_stops_goes_on_and_stays_finished(tmp_path: Path, whole: Path) -> None:
    folder, steps = tmp_path / "stopped", [0]
    begin(folder, ring_config(tmp_path, checkpoint_every=1000))
    for last in (1, 7, 13, 38):  # 7: after a validation
        status = train(
            folder,
            show=lambda status: steps.append(status.steps),
            stop=lambda: steps[-1] >= last,  # noqa: B023
        )
        assert status.steps == last
    assert_same_runs(folder, whole)
    before = torch.load(whole / "checkpoint.pt")
    status = train(whole)
    assert status.steps == status.total
    assert_same(torch.load(whole / "checkpoint.pt"), before)


def test_the_best_model_is_kept(tmp_path: Path) -> None:
    """Of the first run that ends worse than its best; which does depends on the CPU's rounding."""
    for rate in range(3, 12):
        folder, perplexities = tmp_path / f"run-{rate}", list[float]()
        begin(folder, ring_config(tmp_path, valid_every=1, lr=0.5, head_lr=float(rate)))
        status = train(folder, show=lambda now: perplexities.append(now.perplexity))  # noqa: B023
        assert status.best_perplexity == min(perplexities)
        if status.best_perplexity < status.perplexity:
            break
    assert status.best_perplexity < status.perplexity
    assert LanguageModel.load(folder).output.out_features == 10


@pytest.mark.parametrize(("loss", "options"), [("quadratic", ()), ("lns", ("corrected=false",))])
def test_a_loss_that_cannot_be_served(tmp_path: Path, loss: str, options: tuple[str, ...]) -> None:
    begin(tmp_path / "run", ring_config(tmp_path, loss=loss, loss_option=options))
    with pytest.raises(InvalidRequest, match=f"loss: got {loss}"):
        train(tmp_path / "run", to_be_served=True)
    train(tmp_path / "run")
    assert not (tmp_path / "run" / "model.safetensors").exists()


def test_options_come_back(tmp_path: Path) -> None:
    config = ring_config(tmp_path, loss_option=("n_sampled=3", "per_row=true"))
    begin(tmp_path / "run", config)
    assert load_config(tmp_path / "run") == config
    with_valid = TrainConfig(text=config.text, valid=config.text)
    begin(tmp_path / "run", with_valid)
    assert load_config(tmp_path / "run") == with_valid


def test_what_cannot_be_begun(tmp_path: Path) -> None:
    config, whole = ring_config(tmp_path), tmp_path / "whole"
    begin(whole, config)
    (whole / "checkpoint.pt").touch()
    with pytest.raises(InvalidRequest, match=r"out: got .* holds a run"):
        begin(whole, config)
    for name in ("text", "valid"):
        with pytest.raises(InvalidRequest, match=f"{name}: got"):
            begin(tmp_path / "new", ring_config(tmp_path, **{name: tmp_path / "nowhere"}))
    with pytest.raises(InvalidRequest, match="loss_option"):
        begin(tmp_path / "new", ring_config(tmp_path, loss_option=("k=3",)))
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["log.csv", "settings.json"])
def test_what_is_of_no_run_is_left_alone(tmp_path: Path, name: str) -> None:
    other = tmp_path / "folder" / name
    other.parent.mkdir()
    other.write_text("{}")
    with pytest.raises(InvalidRequest, match="out: got"):
        begin(tmp_path / "folder", ring_config(tmp_path))
    assert other.read_text() == "{}"


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"text": "a", "valid": null, "dim": 0}'])
def test_a_folder_without_a_run(tmp_path: Path, content: str) -> None:
    with pytest.raises(InvalidRequest, match="resume: got"):
        train(tmp_path)
    (tmp_path / "settings.json").write_text(content)
    with pytest.raises(InvalidRequest, match="allowed"):
        train(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"), [("dim", 0), ("dropout", 1.0), ("words", 0.5), ("head_lr", -1)]
)
def test_an_option_out_of_range_is_named(name: str, value: Any) -> None:
    with refused(name, f"{name}: got"):
        TrainConfig(**{name: value})
