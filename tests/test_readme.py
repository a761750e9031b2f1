"""The README is one page, its Python runs, and its commands run in their order."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from demo.contexts import FIT, HELD_OUT, PROMPTS
from logitsieve.cli.app import COMMANDS, app
from logitsieve.index_builder import BuildConfig, load_array
from tests.synthetic import make_hidden, make_softmax

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
LIGHT = BuildConfig(clusters=8, rounds=1, steps=5, kmeans_iterations=3)
COMMAND = re.compile(r"^    (logitsieve .*?) *# (.*)$", re.M)
LINES = COMMAND.findall(TEXT.replace("\\\n        ", ""))
WRITES = ("--out", "--build")


def test_it_is_one_page() -> None:
    assert len(TEXT.splitlines()) <= 75


def test_its_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [code] = re.findall(r"^```python\n(.*?)^```", TEXT, re.M | re.S)
    softmax, left = make_softmax(), tmp_path / "models" / "demo"
    for folder in (tmp_path / "demo" / "model", left):
        folder.mkdir(parents=True)
    model = {"embedding.weight": softmax.weight, "output.bias": softmax.bias}
    save_file(model, tmp_path / "demo" / "model" / "model.safetensors")
    np.save(left / FIT, np.float32(make_hidden(600)))
    np.save(left / HELD_OUT, np.float32(make_hidden(8)))
    monkeypatch.chdir(tmp_path)
    light, changed = re.subn("target_precision=target", "config=LIGHT", code)
    assert changed == 1
    names: dict[str, object] = {"LIGHT": LIGHT}
    exec(compile(light, "README.md", "exec"), names)
    assert names["best"].ids.shape == (8, 5)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("line", "comment"), LINES)
def test_its_commands_have_these_options_and_name_their_extra(line: str, comment: str) -> None:
    _, name, *arguments = shlex.split(line)
    shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"}).output
    flags = [word for word in arguments if word.startswith("--")]
    assert [flag for flag in flags if flag not in shown] == []
    extra = COMMANDS[name].extra
    assert re.match(rf"\[{extra}[,\]]" if extra else "no extra", comment)


def test_its_python_reads_only_files_of_the_checkout_and_of_the_demo() -> None:
    [names] = re.findall(r"for name in \((.*?)\)", TEXT)
    for name in re.findall(r'"(.*?)"', names):
        assert load_array(f"{ROOT}/demo/model/model.safetensors:{name}").shape[0] == 40_000
    assert set(re.findall(r'"models/demo/(.*?)"', TEXT)) == {FIT, HELD_OUT}


def test_its_commands_read_only_files_that_earlier_ones_wrote() -> None:
    """Those of the checkout, and those that `make demo`, the first line, leaves."""
    assert "\n    make demo " in TEXT.partition("    logitsieve ")[0]
    there = {"models", "models/demo/1", "models/demo/1/vocabulary.txt"}
    there |= {f"models/demo/{name}" for name in (FIT, HELD_OUT, PROMPTS)}
    for line, _ in LINES:
        words = shlex.split(line)
        written = {words[i + 1] for i, word in enumerate(words) if word in WRITES}
        read = {word for word in words if "/" in word or word == "models"} - written
        assert [path for path in read - there if not (ROOT / path).exists()] == []
        there |= written
