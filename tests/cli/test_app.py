import logging
import subprocess
import sys
from pathlib import Path

import pytest

from logitsieve.cli.app import COMMANDS, MODULES
from logitsieve.version import __version__
from tests.cli.conftest import PROGRAM, Run


def test_the_help_lists_every_command_and_others_are_refused(run: Run) -> None:
    result = run("--help")
    for name, entry in COMMANDS.items():
        assert name in result.stdout
        assert entry.summary in result.stdout
    assert "--install-completion" in run("--help").stdout
    assert run("--version").stdout.startswith("0.")
    run(code=2)
    run("biuld", code=2, says="build")


def test_errors_are_plain_and_a_log_level_is_set(run: Run, index: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "m" / "1"
    run("shard", index, "--shards", 2, "--out", out, code=2, says="error: out: got ")
    result = run("verify", tmp_path / "a\x1b]0;owned\x07b" / "1", code=2)
    assert result.stderr.startswith("error: ")
    assert result.stderr.removesuffix("\n").isprintable()
    assert r"a\x1b]0;owned\x07b" in result.stderr
    run("--log-level", "debug", "verify", index)
    assert logging.getLogger("logitsieve").level == logging.DEBUG
    run("verify", index)
    assert logging.getLogger("logitsieve").level == logging.WARNING


def test_the_installed_command_and_the_module_run() -> None:
    program = Path(sys.executable).with_name("logitsieve")
    done = subprocess.run([program, "verify", "nowhere/1"], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    said = "error: index: got nowhere/1, which does not exist, allowed: a folder <name>/<version>, "
    assert done.stderr.startswith(said)
    command = [sys.executable, "-m", "logitsieve", "--version"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout.strip() == __version__


INTERRUPTED = """
import os, signal, sys
module = sys.argv.pop(1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
class Interrupting:
    def find_spec(self, name, *rest):
        if name == module:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
from logitsieve.cli import main
main()
"""


@pytest.mark.parametrize(
    "module",
    ["typer", "logitsieve.cli.verify", "logitsieve.server.app", "logitsieve.completions.serve"],
)
def test_ctrl_c_while_it_imports_is_one_line(module: str, tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    words = {
        "logitsieve.server.app": ["serve", "--model-repository", str(tmp_path)],
        "logitsieve.completions.serve": ["serve-gguf", str(tmp_path / "m.gguf")],
    }.get(module, ["verify", "nowhere/1"])
    command = [sys.executable, "-c", INTERRUPTED, module, *words]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


ROOT = Path(__file__).parents[2]


def missing_places(name: str) -> list[str]:
    file = name.replace("-", "_")
    module = ROOT / "client" / "logitsieve" / "cli" / f"{file}.py"
    if not module.is_file():
        return [f"{module}: no module of that name"]
    missing = []
    if f"Example: logitsieve {name}" not in module.read_text(encoding="utf-8"):
        missing.append(f"{module}: no `Example: logitsieve {name} ...` in command's docstring")
    test = ROOT / "tests" / "cli" / f"test_{file}.py"
    if not test.is_file():
        missing.append(f"{test}: no tests of the command")
    return missing


@pytest.mark.parametrize("name", COMMANDS)
def test_every_place_of_a_command_is_filled(name: str) -> None:
    assert COMMANDS[name].extra in MODULES, f"{name}: app.MODULES lacks the extra"
    assert missing_places(name) == []


def test_help_on_a_full_disk() -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([PROGRAM, "--help"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == "error: [Errno 28] No space left on device\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_80_columns(run: Run, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = run(name, "--help").stdout.splitlines()
    assert all(len(line) <= 80 or line.startswith("  Example: ") for line in lines)
