from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from logitsieve.cli.app import COMMANDS
from tests.cli.conftest import Run


def test_the_help_lists_every_command(run: Run) -> None:
    result = run("--help")
    assert result.exit_code == 0
    for name, entry in COMMANDS.items():
        assert name in result.stdout
        assert entry.summary in result.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_holds_an_example(run: Run, name: str) -> None:
    result = run(name, "--help")
    assert result.exit_code == 0
    assert f"Example: logitsieve {name}" in result.stdout


def test_no_command_and_an_unknown_one(run: Run) -> None:
    assert run().exit_code == 2
    result = run("biuld")
    assert result.exit_code == 2
    assert "build" in result.stderr


def test_the_version(run: Run) -> None:
    assert run("--version").stdout.startswith("0.")


def test_what_the_system_refuses_is_an_error_without_a_traceback(
    run: Run, index: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    result = run("report", index, "--out", tmp_path / "file" / "report.html")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")


def test_no_control_character_reaches_the_terminal(run: Run, tmp_path: Path) -> None:
    result = run("verify", tmp_path / "a\x1b]0;owned\x07b" / "1")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: ")
    assert result.stderr.removesuffix("\n").isprintable()
    assert r"a\x1b]0;owned\x07b" in result.stderr


def test_the_installed_command_runs() -> None:
    program = Path(sys.executable).with_name("logitsieve")
    done = subprocess.run([program, "verify", "nowhere/1"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.endswith("nowhere/1: no such directory\n")


def test_the_docs_name_every_command_and_its_extra() -> None:
    docs = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    for name, entry in COMMANDS.items():
        [row] = [line for line in docs.splitlines() if line.startswith(f"| `{name}` |")]
        assert row.endswith(f"| `{entry.extra}` |" if entry.extra else "| none |")
