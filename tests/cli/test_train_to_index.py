from pathlib import Path

import numpy as np

from logitsieve.index import open_index
from tests.cli.conftest import SMALL, Run

BUILD = "clusters = 2\nrounds = 1\nsteps = 3\nkmeans_iterations = 2\n"


def test_to_an_index(run: Run, text: Path, tmp_path: Path) -> None:
    (tmp_path / "build.toml").write_text(BUILD)
    out, index = tmp_path / "run", tmp_path / "models" / "ring" / "1"
    command = ("train", "--text", text, "--out", out, *SMALL, "--capture", 400)
    result = run(*command)
    assert result.exit_code == 0, result.stderr
    assert f"{out}/contexts: 400 contexts" in result.stdout
    assert f"Next: logitsieve build --weight {out}/contexts/weight.npy" in result.stdout
    assert np.load(out / "heldout" / "00000.npy").shape == (70, 8)
    build = ("--build", index, "--build-config", tmp_path / "build.toml")
    result = run(*command, *build, "--resume")
    assert result.exit_code == 0, result.stderr
    other = run("train", "--out", out, "--resume", "--capture", 300)
    assert other.exit_code == 2
    assert "capture: got 300, allowed: 400, as in" in other.stderr
    opened = open_index(index)
    assert opened.vocabulary is not None
    assert opened.vocabulary == tuple((out / "vocab.txt").read_text().split())
    assert opened.manifest.config["clusters"] == 2
    assert str(index) in result.stdout
