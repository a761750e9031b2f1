import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from typer.testing import CliRunner

from logitsieve.cli import background
from logitsieve.cli.app import app
from logitsieve.client.llamacpp import LlamaContext
from logitsieve.index.manifest import CALIBRATION_FILE
from tests.server.running import WHERE, said_by
from tests.synthetic import make_hidden, make_softmax, write_heads
from tests.training.trainer.ring import write_ring

Run = Callable[..., Any]
PROGRAM = Path(sys.executable).with_name("logitsieve")
SMALL = (
    *("--vocab-size", 12, "--dim", 8, "--epochs", 1, "--batch-size", 4, "--bptt", 10),
    *("--loss", "uniform", "--loss-option", "n_sampled=4", "--lr", 0.03),
)


@pytest.fixture(scope="session")
def run() -> Run:
    """Run a command line with `text` as its standard input; it ends with `code`, says `says`."""

    def invoke(
        *arguments: object, text: str | bytes | None = None, code: int = 0, says: str = ""
    ) -> Any:
        with patch.dict(os.environ):
            result = CliRunner().invoke(app, [str(argument) for argument in arguments], input=text)
        assert result.exception is None or isinstance(result.exception, SystemExit), result.output
        assert result.exit_code == code, result.output
        assert says in result.stderr
        return result

    return invoke


def write_demo(folder: Path) -> Path:
    """An index of 300 words and 24 dimensions, not calibrated."""
    words = [f"<b>word{number}" for number in range(300)]
    return write_heads(folder / "demo" / "1", make_softmax(), "screen", vocabulary=words)


def whole_words(model: Path) -> dict[str, int]:
    """The tokens of a small model that are words, by their texts."""
    with LlamaContext(model) as context:
        pieces = {context.piece(one).decode("utf-8", "replace"): one for one in range(300, 560)}
    return {piece: one for piece, one in pieces.items() if re.fullmatch(" [a-z]+", piece)}


@pytest.fixture
def index(tmp_path: Path) -> Path:
    return write_demo(tmp_path / "models")


@pytest.fixture
def contexts(tmp_path: Path) -> Path:
    np.save(tmp_path / "H.npy", make_hidden(200))
    return tmp_path / "H.npy"


@pytest.fixture(scope="session")
def tuned(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tuned version of that index, only to be read, where proofs seem slow on any machine."""
    index = write_demo(tmp_path_factory.mktemp("models"))
    out, contexts = index.parent / "2", index.parent / "H.npy"
    np.save(contexts, make_hidden(200))
    result = run("tune", index, "--contexts", contexts, "--out", out)
    assert "settings measured" in result.stdout
    assert "Warning: " not in result.stdout.replace("Warning: precision varies", "")
    calibration = json.loads((out / CALIBRATION_FILE).read_text())
    for point in calibration["points"]:
        for time in point.keys() & {"us_per_row", "draw_us"}:
            point[time] += 1e6 * (point["max_error"] == 0)
    (out / CALIBRATION_FILE).write_text(json.dumps(calibration))
    return out


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_demo(tmp_path_factory.mktemp("models")).parents[1]


@pytest.fixture(scope="module")
def address(models: Path) -> Iterator[str]:
    """Of a `logitsieve serve` that is stopped in the end."""
    options = ["--model-repository", str(models), "--port", "0", "--http-port", "0", "--no-admin"]
    server = subprocess.Popen([PROGRAM, "serve", *options], stderr=subprocess.PIPE, text=True)
    yield said_by(server, WHERE)[1]
    server.send_signal(signal.SIGTERM)
    rest = server.communicate(timeout=60)[1]
    assert server.returncode == 0, rest
    assert "Traceback" not in rest


@pytest.fixture
def inputs(tmp_path: Path) -> dict[str, Any]:
    """The options that a build of 300 words and 24 dimensions needs."""
    softmax = make_softmax()
    np.savez(tmp_path / "lm.npz", W=softmax.weight, b=softmax.bias)
    np.save(tmp_path / "H.npy", make_hidden(400))
    (tmp_path / "words.txt").write_text("".join(f"word{number}\n" for number in range(300)))
    return {
        "--weight": f"{tmp_path}/lm.npz:W",
        "--bias": f"{tmp_path}/lm.npz:b",
        "--contexts": tmp_path / "H.npy",
        "--vocab-file": tmp_path / "words.txt",
        "--out": tmp_path / "models" / "lm" / "1",
    }


@pytest.fixture
def hidden_states(tmp_path: Path) -> Path:
    np.save(tmp_path / "h.npy", make_hidden(3))
    return tmp_path / "h.npy"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    return write_ring(tmp_path / "ring.txt")


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let these lines of Python make the indexes; without any, a process that never ends."""

    def use(code: str) -> None:
        monkeypatch.setattr(background, "BUILD", (sys.executable, "-c", code))

    monkeypatch.setattr(background, "default_cache", lambda: tmp_path / "cache")
    use("import time; time.sleep(600)")
    return use
