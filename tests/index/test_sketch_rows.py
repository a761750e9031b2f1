"""A sketch that passes bounds every logit; one of another matrix, or damaged, names its row."""

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

from logitsieve.heads import Softmax
from logitsieve.index import sketch_rows
from logitsieve.index.sketch_rows import NORMS, SAMPLED, check_rows, sampled_rows, spectral_norms
from logitsieve.index_builder.fit.sketch import Widths
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
from tests.synthetic import coded_rows, make_hidden, make_softmax, matrix_of, rotated, sketch_arrays

Sketch = dict[str, np.ndarray]
V, D = 300, 90
WIDTHS = Widths(32, 64)


def sketch_of(
    softmax: Softmax, widths: Widths | int = WIDTHS, seed: int = 0, count: int | None = None
) -> Sketch:
    random = np.random.default_rng(seed)
    hidden = make_hidden(64, softmax.dim) * np.geomspace(1, 0.01, softmax.dim, dtype=np.float32)
    order = random.permutation(softmax.vocab_size).astype(np.int32)
    turning, stretch = rotated(softmax, hidden, count or softmax.dim)
    return sketch_arrays(softmax, turning, widths, order, stretch)


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
    for widths in (Widths(16, 64), Widths(64, 64), Widths(32, 128), 16):
        for count in {size[1], -(-size[1] // 2)}:
            assert check(softmax, sketch_of(softmax, widths, count=count)) == size[0]


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


def extra(
    name: str, kind: int, row: int, change: Callable[[float], float]
) -> Callable[[Sketch], Any]:
    """Change the scale (0), the rest (1) or, of `coarse`, the bias (2) that codes have of a row."""

    def apply(sketch: Sketch) -> None:
        if name == "fine":
            numbers, place = sketch["fine"][row, -8:].view(np.float32), kind
        else:
            group, lane = divmod(int(np.flatnonzero(sketch["order"] == row)[0]), 16)
            numbers, place = sketch["coarse"][group, -192:].view(np.float32), 16 * kind + lane
        numbers[place] = change(numbers[place])

    return apply


def swapped(sketch: Sketch) -> None:
    sketch["order"][[3, 40]] = sketch["order"][[40, 3]]


def flip_code(sketch: Sketch) -> None:
    sketch["fine"][77, 0] ^= 0x40


def endless(sketch: Sketch) -> None:
    """A row with infinite bounds, which are right, but not those of all rows together."""
    sketch["fine"][9, :-8] = np.where(sketch["fine"][9, :-8] == 128, 129, sketch["fine"][9, :-8])
    extra("fine", 0, 9, lambda s: np.inf)(sketch)


LESS = 1 - 1e-5
SPOILED: dict[str, tuple[Callable[[Sketch], Any], str]] = {
    "kappa": (cell("limits", 0, by=LESS), r"^row \d+: coarse codes are farther off than kappa$"),
    "Q": (cell("limits", 1, by=LESS), r"^row \d+: coarse coordinates are longer than Q$"),
    "fine kappa": (cell("limits", 2, by=LESS), r"^row \d+: fine codes are farther"),
    "fine Q": (cell("limits", 3, by=LESS), r"^row \d+: fine coordinates are longer"),
    "left": (cell("limits", 4, by=0), r"^row \d+: left is below its residual$"),
    "a limit below 0": (cell("limits", 2, by=-1), "limits are not all 0 or more"),
    "directions": (cell("directions", 1, 2, by=1.01), r"^row \d+: "),
    "stretch": (cell("stretch", 2, by=1.01), r"^row \d+: "),
    "triangle": (cell("triangle", 1, 0, by=1.01), r"^row \d+: "),
    "no triangle": (
        lambda sketch: sketch["triangle"].__setitem__((0, 1), 1),
        "triangle is not zero above its diagonal",
    ),
    "singular": (lambda sketch: sketch["triangle"].fill(0), "triangle has no inverse"),
    "order": (swapped, r"^row \d+: coarse has another bias"),
    "code": (flip_code, r"^row 77: fine codes are farther off"),
    "coarse scale": (
        extra("coarse", 0, 9, lambda s: s * 2),
        "^row 9: coarse codes are farther off",
    ),
    "coarse rest": (extra("coarse", 1, 9, lambda n: n * LESS), "^row 9: coarse rest is below"),
    "coarse bias": (extra("coarse", 2, 9, lambda b: b - 1), "^row 9: coarse has another bias"),
    "fine scale": (extra("fine", 0, 9, lambda s: -s), "^row 9: fine has no such scale"),
    "fine NaN": (extra("fine", 0, 9, lambda s: np.nan), "^row 9: fine has no such scale"),
    "fine rest": (extra("fine", 1, 9, lambda n: n * LESS), "^row 9: fine rest is below its norm"),
    **{
        name: (cell("norms", place, by=LESS), rf"^norms has [\d.]+ for {name}, their rows have \d")
        for place, name in enumerate(NORMS)
    },
    "codes without end": (endless, "^norms has .* for fine errors, their rows have inf"),
    "a norm of NaN": (cell("norms", 3, by=np.nan), "^norms has nan for fine errors"),
}


def level_number(kind: int, by: float) -> Callable[[Sketch], Any]:
    """Change one of the NUMBERS of row 9 in a sketch with levels."""

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


BELOW_ERROR, APART_FROM = "norm is below its error", "norm is below what is apart"
SPOILED_LEVELS: dict[str, tuple[Callable[[Sketch], Any], str]] = {
    "kappa": (cell("limits", 0, by=0.999), r"^row \d+: coarse codes are farther off than kappa$"),
    "Q": (cell("limits", 1, by=LESS), r"^row \d+: coarse coordinates are longer than Q$"),
    "middle Q": (cell("limits", 2, by=LESS), r"^row \d+: second level codes are longer than"),
    "last Q": (cell("limits", 3, by=LESS), r"^row \d+: last level codes are longer than"),
    "left": (cell("limits", 4, by=0), r"^row \d+: left is below its residual$"),
    "first bit": (flip_bit("first", 0), f"^row 9: first level {BELOW_ERROR}"),
    "second bit": (flip_bit("middle", 0), f"^row 9: second level {BELOW_ERROR}"),
    "third bit": (flip_bit("fine", 0), "^row 9: last level norm is below"),
    "last bit": (flip_bit("fine", 0, plane=1), "^row 9: last level norm is below"),
    "scale": (level_number(HEAD_SCALE, 1.3), "^row 9: coarse codes are farther"),
    "length": (level_number(TAIL_LENGTH, 0.999), "^row 9: coarse rest is below its norm"),
    "first scale": (level_number(FIRST_SCALE, 1.3), f"^row 9: first level {BELOW_ERROR}"),
    "second scale": (level_number(MIDDLE_SCALE, 1.3), f"^row 9: second level {BELOW_ERROR}"),
    "last scale": (level_number(LAST_SCALE, 1.3), f"^row 9: last level {BELOW_ERROR}"),
    # The error is shorter, but 1e-3 of the row lies along the row.
    "along": (level_number(MIDDLE_SCALE, 0.999), f"^row 9: second level {APART_FROM}"),
    "first norm": (level_number(FIRST_NORM, 0.99), f"^row 9: first level {BELOW_ERROR}"),
    "second norm": (level_number(MIDDLE_NORM, 0.99), f"^row 9: second level {BELOW_ERROR}"),
    "last norm": (level_number(LAST_NORM, 0.99), f"^row 9: last level {BELOW_ERROR}"),
    "no scale": (cell("starts", MIDDLE_SCALE, by=0), "^row 0: second level has no such scale"),
    "directions": (cell("directions", 1, 2, by=1.01), r"^row \d+: "),
    "singular": (lambda sketch: sketch["directions"].fill(0), "directions has no inverse"),
}


@pytest.mark.parametrize(
    ("widths", "count", "case"),
    [*product([WIDTHS], [60, D], SPOILED), *product([16], [D], SPOILED_LEVELS)],
)
def test_a_spoiled_sketch_names_its_row(widths: Any, count: int, case: str) -> None:
    softmax = make_softmax(V, D)
    sketch = sketch_of(softmax, widths, count=count)
    change, reason = (SPOILED_LEVELS if widths == 16 else SPOILED)[case]
    change(sketch)
    with pytest.raises(ValueError, match=reason):
        check(softmax, sketch)


def norms_of(softmax: Softmax, sketch: Sketch) -> tuple[np.ndarray, np.ndarray]:
    """[6] largest singular values, and the same with two parts of what is left out apart."""
    directions, stretch, triangle = (
        sketch[name].astype(np.float64) for name in ("directions", "stretch", "triangle")
    )
    weight = softmax.weight.astype(np.float64) / stretch
    turned = weight @ (directions / stretch).T @ np.linalg.inv(triangle)
    outside = weight - turned @ triangle @ (directions / stretch)
    least, most = [], []
    for fine in (False, True):
        values, _ = coded_rows(sketch, fine)
        coded, rest = turned[:, : values.shape[1]], turned[:, values.shape[1] :]
        longest = [longest_of(each) for each in (coded - values, coded)]
        least += [*longest, longest_of(np.hstack([rest, outside]))]
        most += [*longest, float(np.hypot(longest_of(rest), longest_of(outside)))]
    return np.array(least), np.array(most)


def longest_of(matrix: np.ndarray) -> float:
    return float(np.linalg.norm(matrix, 2)) if matrix.size else 0.0


@pytest.mark.parametrize("kind", [kind for kind in KINDS if "normal" not in kind])
@pytest.mark.parametrize("size", [(1, 1), (17, 3), (2100, 24), (300, 90)])
def test_norms_are_the_largest_singular_values(kind: str, size: tuple[int, int]) -> None:
    softmax = Softmax(matrix_of(kind, *size), np.zeros(size[0], np.float32))
    for count in {size[1], -(-size[1] // 2)}:
        sketch, done = sketch_of(softmax, Widths(16, 64), count=count), list[int]()
        norms = spectral_norms(softmax, sketch, done.append)
        np.testing.assert_array_equal(norms, sketch["norms"])
        assert sum(done) == size[0]
        least, most = norms_of(softmax, sketch)
        off = 1e-7 * most.max()  # some rows may be taken in float32
        assert (norms >= least - off).all()
        assert (norms <= 1.00001 * most + off).all()


@pytest.mark.parametrize("kind", KINDS)
def test_norms_have_room_for_other_rounding(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that takes rows in other blocks sums up, and multiplies, in another order."""
    softmax = Softmax(matrix_of(kind, 700, 40), np.zeros(700, np.float32))
    sketches = [sketch_of(softmax, count=count) for count in (40, 25)]
    for rows in (1, 7, 64, 999):
        monkeypatch.setattr(sketch_rows, "BLOCK_ROWS", rows)
        assert [check(softmax, sketch) for sketch in sketches] == [700, 700]


def test_only_the_rows_named_are_checked() -> None:
    softmax = make_softmax(V, D)
    sketch, weight = sketch_of(softmax), softmax.weight.copy()
    weight[123, 4] += 0.5
    other = Softmax(weight, softmax.bias)
    assert check(other, sketch, [0, 122, 124]) == 3
    with pytest.raises(ValueError, match=r"^row 123: "):
        check(other, sketch)
    softmax = make_softmax(V, D)  # 300 rows lie in 19 groups of 16
    sketch = sketch_of(softmax)
    sketch["coarse"][-1, -4:] = 0
    with pytest.raises(ValueError, match="coarse has a bias beyond the vocabulary"):
        check(softmax, sketch)


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
    """Twice, it would count twice in sums that the stored norms are compared with."""
    for digest in range(20):
        rows = sampled_rows(f"{digest:064x}", vocab_size)
        assert (np.diff(rows) > 0).all()
        assert rows[-1] < vocab_size
