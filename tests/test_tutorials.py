"""Tutorials: their commands have these options, their Python runs, and they run as pasted."""

import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from logitsieve.cli.app import app
from tests.llamacpp.small_model import Make
from tests.synthetic import make_hidden, make_softmax, write_heads

DOCS = Path(__file__).parents[1] / "docs"
TEXTS = {path.stem: path.read_text(encoding="utf-8") for path in DOCS.glob("tutorial-*.md")}
BLOCK = re.compile(r"(?:^    .*\n)+", re.M)
COMMAND = re.compile(r"^logitsieve [^#&|\n]*", re.M)
MOST_S = 900  # of a page, on a busy machine that compiles the kernels
INSTALLS = re.compile(r"^pip install .*$", re.M)


def shell(name: str) -> str:
    """The lines of a page that are pasted into a shell, without those that install."""
    blocks = BLOCK.findall(re.sub(r"^```.*?^```", "", TEXTS[name], flags=re.M | re.S))
    return INSTALLS.sub("", "".join(re.sub("^    ", "", block, flags=re.M) for block in blocks))


COMMANDS = [line for name in TEXTS for line in COMMAND.findall(shell(name).replace("\\\n", ""))]


@pytest.mark.parametrize("line", COMMANDS)
def test_their_commands_have_these_options(line: str) -> None:
    _, name, *arguments = shlex.split(line)
    shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"}).output
    flags = [word for word in arguments if re.match("--?[a-z]", word)]
    assert [flag for flag in flags if not re.search(rf"(^|[ ,]){flag}\b", shown, re.M)] == []


@pytest.fixture
def demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what `make demo` leaves, but smaller."""
    write_heads(tmp_path / "models" / "demo" / "1", make_softmax(), "screen", "sketch")
    np.save(tmp_path / "models" / "demo" / "prompts.npy", make_hidden(3))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_python_of_the_one_on_beams_runs(
    demo: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "\n".join(
        re.findall(r"^```python\n(.*?)^```", TEXTS["tutorial-translation"], re.M | re.S)
    )
    exec(compile(code, "tutorial-translation.md", "exec"), {})
    *found, last = capsys.readouterr().out.splitlines()
    assert len(found) == 2
    assert last.endswith("of 2 best hypotheses are those of the full softmax")


def free_port() -> int:
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        port: int = each.getsockname()[1]
        return port


def pasted(folder: Path, lines: str, share_kernels: Callable[[Path], Path]) -> str:
    """What bash prints, with a HOME of its own, free ports, and job control as in a terminal."""
    share_kernels(folder / "home/.cache/logitsieve")
    http, grpc, admin = (free_port() for _ in range(3))
    for usual, free in (("8080", http), ("8000", http)):
        lines = lines.replace(usual, str(free))
    lines = lines.replace("logitsieve admin", f"logitsieve admin --address localhost:{admin}")
    environment = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(folder / "home"),
        "LOGITSIEVE_ADDRESS": f"localhost:{grpc}",
        "LOGITSIEVE_SERVE_PORT": str(grpc),
        "LOGITSIEVE_SERVE_HTTP_PORT": str(http),
        "LOGITSIEVE_SERVE_ADMIN_PORT": str(admin),
    }
    done = subprocess.run(
        ["bash", "-e", "-m", "-c", lines],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=MOST_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.system
@pytest.mark.exhaustive
@pytest.mark.timeout(MOST_S + 60)
def test_the_one_on_the_service_runs_as_pasted(
    demo: Path, share_kernels: Callable[[Path], Path]
) -> None:
    said = pasted(demo, shell("tutorial-service"), share_kernels)
    assert "stable" in said
    assert "logitsieve_rows_total{" in said


@pytest.mark.system
@pytest.mark.exhaustive
@pytest.mark.timeout(MOST_S + 60)
def test_the_one_on_a_gguf_file_runs_as_pasted(
    llama_wheel: None, make_gguf: Make, share_kernels: Callable[[Path], Path], tmp_path: Path
) -> None:
    (tmp_path / "model.gguf").symlink_to(make_gguf())
    said = pasted(tmp_path, shell("tutorial-gguf"), share_kernels)
    assert '"token_logprobs"' in said
