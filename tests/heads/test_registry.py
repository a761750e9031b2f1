"""Every head is whole: a fit, arrays to test with, and its places in the documentation."""

import re
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from logitsieve.heads import HEADS
from logitsieve.index_builder.fitting import SKETCH
from logitsieve.index_builder.pipeline import FITS
from tests.synthetic import ARRAYS

REPOSITORY = Path(__file__).parents[2]
WITH_ARRAYS = [name for name, head in HEADS.items() if head.part]


def text_of(path: str) -> str:
    return (REPOSITORY / path).read_text(encoding="utf-8")


def has(path: str, pattern: str, wanted: str) -> None:
    """Fail with the file to edit unless a line of it begins like the pattern."""
    assert re.search(pattern, text_of(path), re.MULTILINE), f"{path} lacks {wanted}"


def test_names_are_those_of_the_registry() -> None:
    for name, head in HEADS.items():
        assert head.name == name, f"core/logitsieve/heads/__init__.py: {head.name} stands at {name}"


@pytest.mark.parametrize("name", WITH_ARRAYS)
def test_a_head_with_arrays_has_a_fit(name: str) -> None:
    package = "index_builder/logitsieve/index_builder"
    assert name in (SKETCH, *FITS), f"{package}/pipeline.py lacks a line for {name!r} in FITS"
    assert (REPOSITORY / package / f"fit/{name}.py").exists(), f"{package}/fit/{name}.py is missing"


@pytest.mark.parametrize("name", WITH_ARRAYS)
def test_a_head_with_arrays_has_some_to_test_with(name: str) -> None:
    assert name in ARRAYS, f"tests/synthetic.py lacks arrays for {name!r} in ARRAYS"


@pytest.mark.parametrize("name", HEADS)
def test_a_head_has_its_documentation(name: str) -> None:
    has("docs/heads.md", rf"^\| `{name}` \|", f"a row of the knob table for {name!r}")
    has("docs/heads.md", rf"^## `{name}`", f"a section for {name!r}")
    table = text_of("docs/heads.md").partition(f"\n| `{name}` |")[2]
    rows = takewhile(lambda row: row.startswith("| | |"), table.splitlines()[1:])
    own_rows = "".join([table.splitlines()[0], *rows])
    for knob in HEADS[name].knob_table:
        missing = f"docs/heads.md lacks a row of the knob table for {knob!r} of {name!r}"
        assert f"`{knob}`" in own_rows, missing


@pytest.mark.parametrize("name", WITH_ARRAYS)
def test_a_part_is_documented_with_its_arrays(name: str) -> None:
    part: Any = HEADS[name].part
    has("docs/index-format.md", rf"^### Part `{part.name}`", f"the part {part.name!r}")
    section = text_of("docs/index-format.md").partition(f"### Part `{part.name}`")[2]
    section = section.partition("\n##")[0]
    for array in part.tensors:
        assert f"`{array}`" in section, f"docs/index-format.md lacks {array!r} of {part.name!r}"
