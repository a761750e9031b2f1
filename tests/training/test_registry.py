import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from logitsieve.cli.app import app
from logitsieve.training import LOSSES

ROOT = Path(__file__).parents[2]
INDEX = ROOT / "docs" / "training.md"
FORMULAS = ROOT / "benchmarks" / "papers" / "losses.md"
SECTION = re.compile(r"^## (.*?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
EVERY = pytest.mark.parametrize("name", LOSSES)


def class_of(name: str) -> type:
    """The class of its proposal, or of the loss itself."""
    return LOSSES[name].proposal or LOSSES[name].kind


@EVERY
def test_it_has_a_section_and_a_row_in_the_index(name: str) -> None:
    loss = class_of(name).__name__
    text = INDEX.read_text(encoding="utf-8")
    target = r"\(\.\./benchmarks/papers/losses\.md#([\w-]+)\)"
    row = re.search(rf"^\| `{name}` \| \[{loss}\]{target} \|", text, re.MULTILINE)
    assert row is not None, f"{INDEX}: no row '| `{name}` | [{loss}](.../losses.md#...) |'"
    page = FORMULAS.read_text(encoding="utf-8")
    sections = {title.lower().replace(" ", "-"): rest for title, rest in SECTION.findall(page)}
    assert f"`{loss}" in sections[row[1]], f"{FORMULAS}: its section does not name {loss}"


@EVERY
def test_it_has_tests_of_its_own(name: str) -> None:
    loss = class_of(name)
    module = loss.__module__.removeprefix("logitsieve.training.")
    *folders, file = module.split(".")
    tests = Path(__file__).parent.joinpath(*folders, f"test_{file}.py")
    assert tests.exists(), f"{tests}: no tests of {module}"
    assert loss.__name__ in tests.read_text(encoding="utf-8"), f"{tests}: no {loss.__name__}"


def test_the_command_lists_them_all() -> None:
    shown = CliRunner().invoke(app, ["train", "--losses"]).stdout
    listed = {line.split()[0] for line in shown.splitlines() if line.strip()}
    missing = LOSSES.keys() - listed
    assert not missing, f"client/logitsieve/cli/train.py: --losses does not show {sorted(missing)}"
