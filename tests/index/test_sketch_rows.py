"""A sketch that passes bounds every logit; one of another matrix, or damaged, names its row."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from logitsieve.heads import Softmax
from logitsieve.index import sketch_rows
from logitsieve.index.sketch_rows import SAMPLED, check_rows, sampled_rows
from logitsieve.kernels.simd.shorts import floats_of, shorts_of
from logitsieve.kernels.sketch.levels import (
    FIRST_NORM,
    FIRST_SCALE,
    HEAD_SCALE,
    LAST_NORM,
    LAST_SCALE,
    MIDDLE_NORM,
    MIDDLE_SCALE,
    NUMBERS_IN,
    STEP,
    TAIL_LENGTH,
)
from logitsieve.utils.floats import narrowed
from tests.synthetic import make_hidden, make_softmax, matrix_of, rotated, sketch_arrays

Sketch = dict[str, np.ndarray]
V, D = 300, 90


def sketch_of(softmax: Softmax, first: int = 16) -> Sketch:
    hidden_states = make_hidden(64, softmax.dim) * np.geomspace(
        1, 0.01, softmax.dim, dtype=np.float32
    )
    return sketch_arrays(softmax, rotated(softmax, hidden_states), first)


def check(softmax: Softmax, sketch: Sketch, rows: Any = None) -> int:
    done: list[int] = []
    rows = np.arange(softmax.vocab_size) if rows is None else np.asarray(rows)
    check_rows(softmax, sketch, rows, done.append)
    return sum(done)


KINDS = (
    *("gaussian", "denormal", "hardly normal", "both", "large", "rank one", "rank two"),
    *("equal rows", "whole numbers", "one column", "far from zero", "zeros"),
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [(1, 1), (17, 3), (2100, 24), (300, 90)])
def test_what_the_builder_makes_passes(kind: str, size: tuple[int, int]) -> None:
    bias = np.arange(size[0], dtype=np.float32)
    softmax = Softmax(matrix_of(kind, *size), bias)
    for first in (16, 32, 64):
        assert check(softmax, sketch_of(softmax, first)) == size[0]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_are_checked_by_their_values(dtype: str) -> None:
    softmax = Softmax(narrowed(make_softmax(V, D).weight, dtype), make_softmax(V, D).bias)
    sketch = sketch_of(softmax)
    assert check(softmax, sketch) == V
    assert "weight" not in vars(Softmax(softmax.stored, softmax.bias))
    with pytest.raises(ValueError, match=r"^row 0: "):
        check(Softmax(softmax.stored[::-1].copy(), softmax.bias), sketch)


def cell(name: str, *place: int, by: float) -> Callable[[Sketch], Any]:
    return lambda sketch: sketch[name].__setitem__(place, sketch[name][place] * by)


LESS = 1 - 1e-5


def number(kind: int, by: float) -> Callable[[Sketch], Any]:
    """Change one of the NUMBERS of row 9."""

    def apply(sketch: Sketch) -> None:
        name, place = NUMBERS_IN[kind // 2], kind % 2
        start, step = sketch["starts"][[kind, STEP]]
        codes = sketch[name][0, -64:].view(np.uint16).reshape(2, 16)
        changed = floats_of(codes[place], start, step) * np.float32(by)
        codes[place, 9] = shorts_of(changed, start, step, up=False)[9]

    return apply


def flip_bit(name: str, byte: int, plane: int = 0) -> Callable[[Sketch], Any]:
    """Change the lowest bit of the codes of row 9 that lie `byte` bytes into a plane of bits."""

    def apply(sketch: Sketch) -> None:
        sketch[name][0, byte + 9 + plane * (sketch[name].shape[1] - 64) // 2] ^= 1

    return apply


def flip_code(sketch: Sketch) -> None:
    sketch["coarse"][0, 4 * 9] ^= 0x40


BELOW_ERROR, APART_FROM = "norm is below its error", "norm is below what is apart"
SPOILED: dict[str, tuple[Callable[[Sketch], Any], str]] = {
    "kappa": (cell("limits", 0, by=0.999), r"^row \d+: coarse codes are farther off than kappa$"),
    "Q": (cell("limits", 1, by=LESS), r"^row \d+: coarse coordinates are longer than Q$"),
    "middle Q": (cell("limits", 2, by=LESS), r"^row \d+: second level codes are longer than"),
    "last Q": (cell("limits", 3, by=LESS), r"^row \d+: last level codes are longer than"),
    "left": (cell("limits", 4, by=0), r"^row \d+: left is below its residual$"),
    "code": (flip_code, "^row 9: coarse codes are farther off than kappa$"),
    "first bit": (flip_bit("first", 0), f"^row 9: first level {BELOW_ERROR}"),
    "second bit": (flip_bit("middle", 0), f"^row 9: second level {BELOW_ERROR}"),
    "third bit": (flip_bit("fine", 0), "^row 9: last level norm is below"),
    "last bit": (flip_bit("fine", 0, plane=1), "^row 9: last level norm is below"),
    "scale": (number(HEAD_SCALE, 1.3), "^row 9: coarse codes are farther"),
    "length": (number(TAIL_LENGTH, 0.999), "^row 9: coarse length is below its tail's"),
    "first scale": (number(FIRST_SCALE, 1.3), f"^row 9: first level {BELOW_ERROR}"),
    "second scale": (number(MIDDLE_SCALE, 1.3), f"^row 9: second level {BELOW_ERROR}"),
    "last scale": (number(LAST_SCALE, 1.3), f"^row 9: last level {BELOW_ERROR}"),
    # The error is shorter, but 1e-3 of the row lies along the row.
    "along": (number(MIDDLE_SCALE, 0.999), f"^row 9: second level {APART_FROM}"),
    "first norm": (number(FIRST_NORM, 0.99), f"^row 9: first level {BELOW_ERROR}"),
    "second norm": (number(MIDDLE_NORM, 0.99), f"^row 9: second level {BELOW_ERROR}"),
    "last norm": (number(LAST_NORM, 0.99), f"^row 9: last level {BELOW_ERROR}"),
    "no scale": (cell("starts", MIDDLE_SCALE, by=0), "^row 0: second level has no such scale"),
    "a limit below 0": (cell("limits", 2, by=-1), "limits are not all 0 or more"),
    "directions": (cell("directions", 1, 2, by=1.01), r"^row \d+: "),
    "singular": (lambda sketch: sketch["directions"].fill(0), "directions has no inverse"),
}


@pytest.mark.parametrize("case", SPOILED)
def test_a_spoiled_sketch_names_its_row(case: str) -> None:
    softmax = make_softmax(V, D)
    sketch = sketch_of(softmax)
    change, reason = SPOILED[case]
    change(sketch)
    with pytest.raises(ValueError, match=reason):
        check(softmax, sketch)


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_have_room_for_other_rounding(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that takes rows in other blocks sums up, and multiplies, in another order."""
    softmax = Softmax(matrix_of(kind, 200, 40), np.zeros(200, np.float32))
    sketch = sketch_of(softmax)
    for rows in (1, 7, 64, 999):
        monkeypatch.setattr(sketch_rows, "BLOCK_ROWS", rows)
        assert check(softmax, sketch) == 200


def test_only_the_rows_named_are_checked() -> None:
    softmax = make_softmax(V, D)
    sketch, weight = sketch_of(softmax), softmax.weight.copy()
    weight[123, 4] += 0.5
    other = Softmax(weight, softmax.bias)
    assert check(other, sketch, [0, 122, 124]) == 3
    with pytest.raises(ValueError, match=r"^row 123: "):
        check(other, sketch)


def test_a_sample_has_a_row_of_each_stretch_and_depends_on_the_digest_alone() -> None:
    rows = sampled_rows("ab" * 32, 50_000)
    assert len(rows) == SAMPLED
    stretches = np.arange(SAMPLED + 1) * 50_000 / SAMPLED
    assert (np.floor(stretches[:-1]) <= rows).all()
    assert (rows < stretches[1:]).all()
    np.testing.assert_array_equal(rows, sampled_rows("ab" * 32, 50_000))
    assert not np.array_equal(rows, sampled_rows("cd" * 32, 50_000))
    for few in (1, 7, SAMPLED):
        np.testing.assert_array_equal(sampled_rows("ab" * 32, few), np.arange(few))
    assert sampled_rows("f" * 64, 2**31 - 1).max() < 2**31 - 1


@pytest.mark.parametrize("vocab_size", [SAMPLED + 1, 1100, 1500, 2 * SAMPLED + 1, 10_000])
def test_a_sample_has_no_row_twice(vocab_size: int) -> None:
    for digest in range(20):
        rows = sampled_rows(f"{digest:064x}", vocab_size)
        assert (np.diff(rows) > 0).all()
        assert rows[-1] < vocab_size
