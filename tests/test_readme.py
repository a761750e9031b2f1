"""The README is one page, its Python runs, and its commands and options exist."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from logitsieve.cli.app import COMMANDS, app
from logitsieve.index_builder import BuildConfig
from tests.synthetic import make_hidden, make_softmax

TEXT = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
LIGHT = BuildConfig(clusters=8, rounds=1, steps=5, kmeans_iterations=3)


def test_it_is_one_page() -> None:
    assert len(TEXT.splitlines()) <= 120


def test_its_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [code] = re.findall(r"^```python\n(.*?)^```", TEXT, re.M | re.S)
    softmax = make_softmax()
    contexts = np.float32(make_hidden(600))
    np.savez(tmp_path / "softmax.npz", W=softmax.weight, b=softmax.bias, contexts=contexts)
    monkeypatch.chdir(tmp_path)
    light, changed = re.subn(r"target_precision=\{.*?\}", "config=LIGHT", code)
    assert changed == 1
    names: dict[str, object] = {"LIGHT": LIGHT}
    exec(compile(light, "README.md", "exec"), names)
    assert names["best"].ids.shape == (8, 5)  # type: ignore[attr-defined]


@pytest.mark.parametrize("line", re.findall(r"^    (logitsieve .*?)(?:  #.*)?$", TEXT, re.M))
def test_its_commands_have_these_options(line: str) -> None:
    _, name, *arguments = line.split()
    assert name in COMMANDS
    shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"}).output
    flags = [word for word in arguments if word.startswith("--")]
    assert [flag for flag in flags if flag not in shown] == []
