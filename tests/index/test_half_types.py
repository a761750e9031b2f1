"""A matrix kept in float16 or bfloat16: its bytes, and what is refused.

`test_stored_rows.py` compares its identity and its answers.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from logitsieve.api.errors import IndexUnreadable
from logitsieve.index import link_index, verify_index
from logitsieve.index.reader import read_contents
from logitsieve.index.verify import verify_contents
from logitsieve.utils.floats import CODES, STORED
from tests.index.samples import (
    forge,
    half_softmax,
    read_manifest,
    replace_file,
    spoil_tensor,
    tiny_softmax,
    write_tiny,
)

HALVES = ["float16", "bfloat16"]
EVERY_TYPE = pytest.mark.parametrize("name", STORED)
EVERY_HALF = pytest.mark.parametrize("name", HALVES)
FILE = "softmax.safetensors"


def write_half(folder: Path, name: str, version: int = 1) -> Path:
    return write_tiny(folder / "half" / str(version), softmax=half_softmax(name))


@EVERY_TYPE
def test_a_matrix_is_read_back_in_the_type_it_was_written_in(name: str, tmp_path: Path) -> None:
    softmax = half_softmax(name)
    index = write_half(tmp_path, name)
    contents = read_contents(index)
    assert contents.manifest.dtype == CODES[name]
    assert contents.softmax.stored.dtype == STORED[name]
    np.testing.assert_array_equal(contents.softmax.stored, softmax.stored)
    np.testing.assert_array_equal(contents.softmax.weight, softmax.weight)
    np.testing.assert_array_equal(contents.softmax.bias, softmax.bias)
    assert verify_index(index)
    with safe_open(index / FILE, framework="np") as file:  # any safetensors library reads it
        assert file.get_slice("weight").get_dtype() == CODES[name]
        assert file.get_slice("bias").get_dtype() == "F32"


def test_float32_is_mapped_and_halves_are_widened_once(tmp_path: Path) -> None:
    for version, name in enumerate(STORED, start=1):
        softmax = read_contents(write_half(tmp_path, name, version)).softmax
        assert not softmax.stored.flags.writeable
        assert not softmax.weight.flags.writeable
        assert softmax.weight is softmax.weight
        assert (softmax.weight is softmax.stored) == (name == "float32")


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


REFUSED: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "another type in the manifest": (
        "float16",
        lambda index: forge(index, dtype="BF16"),
        "weight is F16, needed: BF16, the manifest's dtype",
    ),
    "float32 in the manifest": (
        "bfloat16",
        lambda index: forge(index, dtype="F32"),
        "weight is BF16, needed: F32, the manifest's dtype",
    ),
    "another type in the header": (
        "bfloat16",
        lambda index: relabel(index, "F16"),
        "weight is F16, needed: BF16, the manifest's dtype",
    ),
    "integers in the header": (
        "bfloat16",
        lambda index: relabel(index, "U16"),
        "weight is U16, needed: BF16, the manifest's dtype",
    ),
    "half of float32": (
        "float32",
        lambda index: forge(index, dtype="F16"),
        "weight is F32, needed: F16, the manifest's dtype",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_types_that_differ_are_refused_by_name(case: str, tmp_path: Path) -> None:
    name, spoil, reason = REFUSED[case]
    index = write_half(tmp_path, name)
    spoil(index)
    with pytest.raises(IndexUnreadable) as refused:
        read_contents(index)
    assert refused.value.file == index / FILE
    assert refused.value.reason == reason


@EVERY_HALF
def test_the_same_bits_as_the_other_type_are_another_matrix(name: str, tmp_path: Path) -> None:
    index = write_half(tmp_path, name)
    other = CODES[next(half for half in HALVES if half != name)]
    relabel(index, other)
    forge(index, dtype=other)
    with pytest.raises(IndexUnreadable, match="holds the matrix"):
        verify_contents(read_contents(index))


@EVERY_HALF
def test_a_version_that_shares_the_files_has_the_same_type(name: str, tmp_path: Path) -> None:
    index = write_half(tmp_path, name)
    linked = link_index(index, tmp_path / "half" / "2", calibration={})
    assert read_manifest(linked) == read_manifest(index)
    np.testing.assert_array_equal(read_contents(linked).softmax.stored, half_softmax(name).stored)


def test_an_index_of_float32_is_what_it_was(tiny: Path) -> None:
    golden = Path(__file__).parent / "golden" / "1" / "manifest.json"
    assert read_manifest(tiny).digest in golden.read_text()
    assert read_manifest(tiny).dtype == "F32"
    assert read_contents(tiny).softmax.stored.nbytes == tiny_softmax().weight.nbytes
