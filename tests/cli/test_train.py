import json
import signal
from pathlib import Path

import numpy as np
import pytest

from logitsieve.index import open_index
from tests.cli.conftest import SMALL, Run
from tests.server.running import process


def test_training_ends_and_a_run_keeps_its_options(run: Run, text: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = ("train", "--text", text, "--out", out, *SMALL)
    result = run(*command, "--json")
    facts = json.loads(result.stdout)
    assert facts["steps"] == 19
    assert facts["perplexity"] > 1
    assert (facts["contexts"], facts["index"]) == (None, None)
    assert "valid perplexity" in result.stderr
    assert json.loads((out / "settings.json").read_text())["loss_option"] == ["n_sampled=4"]
    for again in (command, ("train", "--out", out)):
        assert "19 steps, perplexity" in run(*again, "--resume").stdout
    run(*command, code=2, says="which holds a run, allowed: another folder, or --resume")
    for flag, value, reason in (
        ("--dim", 9, "dim: got 9, allowed: 8, with which the run was begun"),
        ("--loss-option", "bias=false", "loss_option: got"),
        ("--text", tmp_path / "other", "text: got"),
    ):
        run(*command, "--resume", flag, value, code=2, says=reason)


def test_losses_are_listed_and_must_be_servable(run: Run, text: Path, tmp_path: Path) -> None:
    assert "n_sampled" in run("train", "--losses").stdout
    options = ("--epochs", 1, "--batch-size", 4, "--loss", "quadratic", "--capture", 99)
    command = ("train", "--text", text, "--out", tmp_path / "run", *options)
    run(*command, code=2, says="loss: got quadratic")


@pytest.mark.system
@pytest.mark.parametrize(
    "number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.exhaustive)]
)
def test_a_signal_saves_it(run: Run, text: Path, tmp_path: Path, number: signal.Signals) -> None:
    out = tmp_path / "run"
    options = (*SMALL, "--epochs", 10**6, "--valid-every", 5)
    command = ("-m", "logitsieve", "train", "--text", text, "--out", out, *options)
    with process(*command, COLUMNS="200") as training:
        assert training.stderr is not None
        assert any("valid perplexity" in line for line in training.stderr)
        training.send_signal(number)
        said = training.communicate(timeout=100)[1]
    assert training.returncode == 1
    assert "Go on with the same command and --resume" in said
    assert (out / "checkpoint.pt").exists()


BUILD = "clusters = 2\nrounds = 1\nsteps = 3\nkmeans_iterations = 2\n"


def test_to_an_index(run: Run, text: Path, tmp_path: Path) -> None:
    (tmp_path / "build.toml").write_text(BUILD)
    out, index = tmp_path / "run", tmp_path / "models" / "ring" / "1"
    command = ("train", "--text", text, "--out", out, *SMALL, "--capture", 400)
    result = run(*command)
    assert f"{out}/contexts: 400 contexts" in result.stdout
    assert f"Next: logitsieve build --weight {out}/contexts/weight.npy" in result.stdout
    assert np.load(out / "heldout" / "00000.npy").shape == (70, 8)
    build = ("--build", index, "--build-config", tmp_path / "build.toml")
    result = run(*command, *build, "--resume")
    said = "capture: got 300, allowed: 400, as in"
    run("train", "--out", out, "--resume", "--capture", 300, code=2, says=said)
    opened = open_index(index)
    assert opened.vocabulary is not None
    assert opened.vocabulary == tuple((out / "vocab.txt").read_text().split())
    assert opened.manifest.config["clusters"] == 2
    assert str(index) in result.stdout
