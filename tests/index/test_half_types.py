"""A matrix kept in float16 or bfloat16: what is refused; `test_stored_rows.py` has its answers."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from logitsieve.api.errors import IndexUnreadable
from logitsieve.index.reader import read_contents
from logitsieve.index.verify import verify_contents
from tests.index.samples import (
    forge,
    half_softmax,
    read_manifest,
    replace_file,
    spoil_tensor,
    write_tiny,
)

HALVES = ["float16", "bfloat16"]
EVERY_HALF = pytest.mark.parametrize("name", HALVES)
FILE = "softmax.safetensors"


def write_half(folder: Path, name: str) -> Path:
    return write_tiny(folder / "half" / "1", softmax=half_softmax(name))


INFINITE = {"float16": 0x7C00, "bfloat16": 0x7F80}


@EVERY_HALF
@pytest.mark.parametrize("bits", [0, 1, 1 << 15], ids=["inf", "NaN", "-inf"])
def test_numbers_are_checked_as_they_are_stored(name: str, bits: int, tmp_path: Path) -> None:
    index = write_half(tmp_path, name)

    def change(array: np.ndarray) -> None:
        array.view(np.uint16)[4, 2] = INFINITE[name] | bits

    spoil_tensor(index, "softmax", "weight", change)
    with pytest.raises(IndexUnreadable, match="weight is not finite in row 4") as refused:
        verify_contents(read_contents(index))
    assert refused.value.file == index / FILE


def relabel(index: Path, code: str) -> None:
    """Give the weight another type in the header, the digests fitting."""
    data = (index / FILE).read_bytes()
    old = read_manifest(index).dtype
    changed = data.replace(f'"{old}","shape":[7,3]'.encode(), f'"{code}","shape":[7,3]'.encode())
    if len(code) != len(old):  # the padding behind the header makes room
        end = changed.index(b"}}") + 2
        pad = len(data) - len(changed)
        changed = changed[:end] + b" " * pad + changed[end - min(pad, 0) :]
    assert len(changed) == len(data)
    replace_file(index / FILE, changed)
    forge(index)


def declare(code: str) -> Callable[[Path], None]:
    return lambda index: forge(index, dtype=code)


@pytest.mark.parametrize(
    ("name", "spoil", "needed"),
    [
        ("float16", declare("BF16"), "F16, needed: BF16"),
        ("bfloat16", declare("F32"), "BF16, needed: F32"),
        ("float32", declare("F16"), "F32, needed: F16"),
        ("bfloat16", lambda index: relabel(index, "F16"), "F16, needed: BF16"),
        ("bfloat16", lambda index: relabel(index, "U16"), "U16, needed: BF16"),
    ],
)
def test_types_that_differ_are_refused_by_name(
    tmp_path: Path, name: str, spoil: Callable[[Path], None], needed: str
) -> None:
    index = write_half(tmp_path, name)
    spoil(index)
    with pytest.raises(IndexUnreadable) as refused:
        read_contents(index)
    assert refused.value.file == index / FILE
    assert refused.value.reason == f"weight is {needed}, the manifest's dtype"
