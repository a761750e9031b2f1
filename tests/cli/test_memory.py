from __future__ import annotations

import math
from pathlib import Path

import pytest

from logitsieve.cli.memory import formula, memory
from logitsieve.heads._base.spec import TensorSpec
from logitsieve.index import HeadEntry, write_index
from logitsieve.index.checks import PARTS
from logitsieve.index.contents import read_contents
from tests.index.samples import write_tiny
from tests.synthetic import ARRAYS, make_softmax


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (TensorSpec("float32", ("C", "D")), "4 C D"),
        (TensorSpec("int32", ("C+1",), "offsets", "S"), "4 (C+1)"),
        (TensorSpec("uint8", ("V/16", 64), "codes"), "1 ceil(V/16) 64"),
    ],
)
def test_formulas(tensor: TensorSpec, expected: str) -> None:
    assert formula(tensor, tensor.dtypes[0].itemsize) == expected


def test_a_screen(tmp_path: Path) -> None:
    found = memory(read_contents(write_tiny(tmp_path / "demo" / "1")))
    assert list(found) == ["screen", "softmax"]
    screen, softmax = found["screen"], found["softmax"]
    assert {name: (each.formula, each.bytes) for name, each in screen.tensors.items()} == {
        "centroids": ("4 C D", 24),
        "offsets": ("4 (C+1)", 12),
        "ids": ("4 S", 20),
    }
    assert screen.bytes == 56
    assert (screen.sizes["C"], screen.sizes["S"]) == (2, 5)
    assert softmax.bytes == 4 * 7 * 3 + 4 * 7


@pytest.mark.parametrize("name", sorted(ARRAYS))
def test_formulas_come_to_what_the_arrays_take(name: str, tmp_path: Path) -> None:
    softmax = make_softmax()
    path = write_index(
        tmp_path / "lm" / "1",
        softmax=softmax,
        parts={name: ARRAYS[name](softmax)} if name in PARTS else {},
        heads={"exact": HeadEntry()},
        default_head="exact",
    )
    for part in memory(read_contents(path)).values():
        for tensor in part.tensors.values():
            product = 1
            for factor in tensor.formula.split():
                product *= eval(factor, {"ceil": math.ceil}, dict(part.sizes))
            assert product == tensor.bytes
