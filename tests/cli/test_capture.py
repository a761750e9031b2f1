import json
from pathlib import Path
from traceback import extract_tb

import numpy as np
import pytest
from typer.testing import CliRunner

from logitsieve.cli.app import app
from tests.cli.conftest import Run
from tests.client.tiny_models import DIM, VOCABULARY, gpt2
from tests.index_builder.capture.test_huggingface import write_tokenizer
from tests.llamacpp.small_model import CHAT, Make

SOURCE = """
import torch
from torch import nn

def load():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 50))
    return model, [torch.randint(50, (4, 5)) for _ in range(3)]

def scaled():
    class Scaled(nn.Linear):
        def forward(self, hidden_states):
            return super().forward(hidden_states) / 2
    return Scaled(8, 50), [torch.ones(2, 8)]

def nothing():
    return None

def broken():
    raise KeyError("of the user's own")
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(SOURCE)
    return tmp_path / "model.py"


def test_capture_writes_and_says_what_to_do_next(run: Run, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "contexts"
    options = ("--max-rows", 30, "--dtype", "float32", "--json")
    result = run("capture", "--module", f"{source}:load", "--out", out, *options)
    summary = json.loads(result.stdout)
    assert (summary["rows"], summary["rows_seen"], summary["dtype"]) == (30, 60, "float32")
    assert np.load(out / "00000.npy").shape == (30, 8)
    run("capture", "--module", f"{source}:load", "--out", out, code=2, says="out: got")
    out = tmp_path / "others"
    shown = run("capture", "--module", f"{source}:load", "--out", out).stdout
    assert f"logitsieve build --weight {out}/weight.npy" in shown


def test_an_error_of_the_users_module_keeps_its_traceback(source: Path, tmp_path: Path) -> None:
    command = ["capture", "--module", f"{source}:broken", "--out", str(tmp_path / "out")]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 1
    assert isinstance(result.exception, KeyError)
    assert extract_tb(result.exception.__traceback__)[-1].name == "broken"


def test_a_hugging_face_folder(run: Run, tmp_path: Path) -> None:
    gpt2().save_pretrained(tmp_path / "model")
    write_tokenizer(tmp_path / "model", begins=False)
    (tmp_path / "text.txt").write_text("w5 w7 w9\n" * 30)
    options = ("--text", tmp_path / "text.txt", "--window", 16, "--json")
    out = tmp_path / "out"
    result = run("capture", "--huggingface", tmp_path / "model", "--out", out, *options)
    assert json.loads(result.stdout)["rows"] == 90
    assert np.load(out / "weight.npy").shape == (VOCABULARY, DIM)


@pytest.mark.parametrize("half", [False, True])
def test_a_matrix_of_bfloat16_is_told_to_be_kept_as_such(
    run: Run, tmp_path: Path, half: bool
) -> None:
    model = gpt2()
    (model.bfloat16() if half else model).save_pretrained(tmp_path / "model")
    write_tokenizer(tmp_path / "model", begins=False)
    (tmp_path / "text.txt").write_text("w5 w7 w9\n" * 30)
    options = ("--text", tmp_path / "text.txt", "--window", 16)
    said = run("capture", "--huggingface", tmp_path / "model", "--out", tmp_path / "out", *options)
    assert ("--dtype bfloat16 --out models/NAME/1" in said.stdout) == half


@pytest.mark.usefixtures("llama_wheel")
def test_a_gguf_model(run: Run, make_gguf: Make, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the time of man\n" * 30)
    out, options = tmp_path / "out", ("--text", tmp_path / "text.txt", "--window", 16)
    result = run("capture", "--model", make_gguf(), "--out", out, *options)
    assert f"Next: logitsieve build --weight {make_gguf()} --contexts {out}" in result.stdout
    assert np.load(out / "00000.npy").shape[1] == 64
    chat = ("--model", make_gguf(chat_template=CHAT), "--chat", "--json")
    made = run("capture", *chat, "--out", tmp_path / "chat", *options[:2])
    assert json.loads(made.stdout)["chat"] is True
    out = tmp_path / "others"  # the primer is read where there is no text
    result = run("capture", "--model", make_gguf(), "--out", out)
    assert result.stdout.count("primer") == 1
    assert f"--contexts {out} --heads full,sketch --out" in result.stdout
    assert json.loads((out / "capture.json").read_text())["primer"] is True
