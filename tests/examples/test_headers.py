"""Scripts name what they need, so that `uv run` finds it (PEP 723)."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
OWN = {"tritonclient": "tritonclient[grpc]", "numpy": "numpy"}  # of scripts without logitsieve


def header(script: Path) -> Any:
    text = script.read_text(encoding="utf-8")
    block = re.match(r"# /// script\n((?:#(?: .*)?\n)+?)# ///\n", text)
    assert block, f"{script.name} does not begin with a block of PEP 723"
    return tomllib.loads(re.sub(r"(?m)^# ?", "", block[1]))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_script_names_what_it_imports(script: Path) -> None:
    told, imported = (
        header(script),
        set(re.findall(r"(?m)^(?:import|from) (\w+)", script.read_text())),
    )
    assert told["requires-python"] == PROJECT["requires-python"]
    if "logitsieve" not in imported:
        assert told["dependencies"] == [OWN[name] for name in sorted(OWN) if name in imported]
        return
    assert told["tool"]["uv"]["sources"] == {"logitsieve": {"path": ".."}}
    [needed] = told["dependencies"]
    extras = re.fullmatch(r"logitsieve\[([a-z,]+)\]", needed)
    assert extras
    assert set(extras[1].split(",")) <= set(PROJECT["optional-dependencies"])
