import io
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

from logitsieve.api.errors import InvalidRequest
from logitsieve.index_builder.arrays import load_array
from logitsieve.index_builder.contexts import Contexts, open_contexts
from tests.refusals import refused

ROWS, DIM = 50, 6
THREE = np.zeros((3, DIM), np.float32)


@pytest.fixture
def values() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((ROWS, DIM)).astype(np.float16)


def npy(path: Path, array: Any) -> str:
    np.save(path, array, allow_pickle=True)
    return str(path)


def npz(path: Path, name: str, save: Callable[..., None] = np.savez, **arrays: Any) -> str:
    save(path, **arrays)
    return f"{path}:{name}"


def tensors(path: Path, name: str, **arrays: Any) -> str:
    save_file(arrays, path)
    return f"{path}:{name}"


def shards(folder: Path, *names: str, of: Any = THREE) -> Path:
    """A folder of numbered files, and one more without a number."""
    np.save(folder / "weight.npy", of)
    for name, shard in zip(names, np.array_split(of, max(1, len(names))), strict=False):
        np.save(folder / f"{name}.npy", shard)
    return folder


def as_shards(values: np.ndarray, folder: Path) -> Path:
    np.save(folder / "00011.npy", values[:0])
    return shards(folder, *(f"{number:05}" for number in range(11)), of=values)


FORMS: dict[str, Callable[[np.ndarray, Path], object]] = {
    "array": lambda values, folder: values,
    "list": lambda values, folder: values.tolist(),
    "tensor": lambda values, folder: torch.from_numpy(values),
    "npy": lambda values, folder: npy(folder / "h.npy", values),
    "path": lambda values, folder: Path(npy(folder / "h.npy", values)),
    "Fortran": lambda values, folder: npy(folder / "h.npy", np.asfortranarray(np.float32(values))),
    "shards": lambda values, folder: as_shards(values, folder),
    "npz": lambda values, folder: npz(folder / "h.npz", "H", W=np.zeros(3), H=values),
    "deflated": lambda values, folder: npz(folder / "h.npz", "H", np.savez_compressed, H=values),
    "safetensors": lambda values, folder: tensors(folder / "h.safetensors", "h", o=THREE, h=values),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_rows(form: str, values: np.ndarray, tmp_path: Path) -> None:
    contexts = open_contexts(FORMS[form](values, tmp_path), DIM)
    expected = values.astype(np.float32)
    assert (contexts.rows, contexts.dim) == (ROWS, DIM)
    blocks = list(contexts.blocks(7))
    assert all(block.dtype == np.float32 and 0 < len(block) <= 7 for block in blocks)
    np.testing.assert_array_equal(np.concatenate(blocks), expected)
    rows = np.array([49, 0, 13, 13, 48, 5])
    np.testing.assert_array_equal(contexts.take(rows), expected[rows])
    some = np.concatenate(list(contexts.between(3, 41).blocks()))
    np.testing.assert_array_equal(some, expected[3:41])


def test_bfloat16_of_safetensors(values: np.ndarray, tmp_path: Path) -> None:
    tensor = torch.from_numpy(values).to(torch.bfloat16)
    save_torch({"h": tensor}, tmp_path / "h.safetensors")
    contexts = open_contexts(f"{tmp_path}/h.safetensors:h", DIM)
    np.testing.assert_array_equal(next(contexts.blocks()), tensor.float().numpy())


def test_the_last_tenth_is_held_out(values: np.ndarray, tmp_path: Path) -> None:
    train, heldout = open_contexts(as_shards(values, tmp_path), DIM).split()
    assert (train.rows, heldout.rows) == (45, 5)
    np.testing.assert_array_equal(heldout.take(np.arange(5)), values[45:].astype(np.float32))
    np.testing.assert_array_equal(train.take(np.array([44])), values[44:45].astype(np.float32))
    train, heldout = Contexts([np.zeros((2, 3), np.float32)]).split()
    assert train.rows == heldout.rows == 1
    with pytest.raises(InvalidRequest, match="2 rows or more"):
        Contexts([np.zeros((1, 3), np.float32)]).split()


def in_shards(values: np.ndarray) -> Contexts:
    return Contexts([values[:17], values[17:26], values[26:]])


@pytest.mark.parametrize(
    ("rows", "blocks", "expected"),
    [
        (12, 4, [0, 1, 2, 12, 13, 14, 25, 26, 27, 37, 38, 39]),
        (13, 4, [0, 1, 2, 12, 13, 14, 25, 26, 27, 37, 38, 39]),
        (3, 4, [0, 1, 2]),
        (50, 4, list(range(50))),
        (80, 4, list(range(50))),
    ],
)
def test_spread_blocks(rows: int, blocks: int, expected: list[int], values: np.ndarray) -> None:
    found = in_shards(values).spread(rows, blocks)
    assert found.rows == len(expected)
    np.testing.assert_array_equal(np.concatenate([*found.blocks()]), np.float32(values[expected]))


@pytest.mark.parametrize(("rows", "expected"), [(4, [0, 12, 25, 37]), (99, list(range(50)))])
def test_a_sample_is_spread(rows: int, expected: list[int], values: np.ndarray) -> None:
    found = in_shards(values).sample(rows)
    np.testing.assert_array_equal(found, np.float32(values[expected]))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((4, DIM + 1), np.float32), r"D = 7.*D = 6"),
        (np.zeros(DIM, np.float32), r"shape \[6\]"),
        (np.zeros((0, DIM), np.float32), "no rows"),
        (np.zeros((4, DIM), np.int64), "int64"),
        (np.zeros((4, DIM), np.complex64), "complex64"),
        (np.zeros((4, DIM), np.longdouble), "float128"),
        (np.array([[None] * DIM]), "object"),
        ([["a"] * DIM], "dtype <U1"),
        ([[1.0], [1.0, 2.0]], "ragged"),
    ],
)
def test_arrays_that_are_no_contexts(array: object, message: str) -> None:
    with refused("heldout", message):
        open_contexts(array, DIM, "heldout")


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite(bad: float, values: np.ndarray) -> None:
    values[31, 2] = bad
    contexts = Contexts([values[:20], values[20:]])
    with pytest.raises(InvalidRequest, match="row 31"):
        list(contexts.blocks(8))
    with pytest.raises(InvalidRequest, match="finite"):
        contexts.take(np.array([31]))


def broken_member(folder: Path) -> str:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        array = io.BytesIO()
        np.save(array, np.random.default_rng(1).standard_normal((ROWS, DIM)))
        archive.writestr("H.npy", array.getvalue())
    data = bytearray(packed.getvalue())
    data[200:230] = bytes(30)
    (folder / "h.npz").write_bytes(data)
    return f"{folder}/h.npz:H"


def written(file: Path, content: bytes, name: str = "") -> str:
    file.write_bytes(content)
    return f"{file}{name}"


def truncated(folder: Path) -> str:
    data = Path(npy(folder / "h.npy", np.zeros((ROWS, DIM), np.float32))).read_bytes()
    return written(folder / "h.npy", data[:-9])


def member_that_is_no_array(folder: Path) -> str:
    with zipfile.ZipFile(folder / "h.npz", "w") as archive:
        archive.writestr("H", b"text")
    return f"{folder}/h.npz:H"


def garbage(file: str, name: str) -> Callable[[Path], str]:
    content = b"this is no array, but long enough to be read as one"
    return lambda folder: written(folder / file, content, name)


GARBAGE = ("h.npy", ""), ("h.npz", ":H"), ("h.safetensors", ":h"), ("h.txt", ""), ("h.pt", "")
OBJECTS = np.array([{"a": 1}], object)
HOSTILE: dict[str, Callable[[Path], str]] = {
    "pickled": lambda folder: npy(folder / "h.npy", OBJECTS),
    "pickled member": lambda folder: npz(folder / "h.npz", "H", H=OBJECTS),
    "truncated": truncated,
    **{f"garbage {file}{name}": garbage(file, name) for file, name in GARBAGE},
    "empty": lambda folder: written(folder / "h.npy", b""),
    "missing": lambda folder: f"{folder}/nothing.npy",
    "no shards": lambda folder: str(shards(folder)),
    "a shard is missing": lambda folder: str(shards(folder, "00000", "00002")),
    "two of one number": lambda folder: str(shards(folder, "0", "00000", "00001")),
    "a member that is no array": member_that_is_no_array,
    "npy named npz": lambda folder: (
        f"{Path(npy(folder / 'h.npy', THREE)).rename(folder / 'h.npz')}:H"
    ),
    "unnamed": lambda folder: npz(folder / "h.npz", "H", H=THREE).removesuffix(":H"),
    "unknown member": lambda folder: npz(folder / "h.npz", "G", H=THREE),
    "unknown tensor": lambda folder: tensors(folder / "h.safetensors", "g", h=THREE),
    "integers": lambda folder: tensors(folder / "h.safetensors", "h", h=THREE.astype(np.int32)),
    "broken member": broken_member,
}


@pytest.mark.parametrize("case", HOSTILE)
def test_hostile_files_are_refused_by_name(case: str, tmp_path: Path) -> None:
    source = HOSTILE[case](tmp_path)
    with pytest.raises(InvalidRequest) as caught:
        open_contexts(source, DIM)
    assert caught.value.field == "contexts"
    assert str(tmp_path) in str(caught.value.got)  # a long path is cut in the message
    assert "allow_pickle" not in str(caught.value)
    if not Path(source).is_dir():
        with pytest.raises(InvalidRequest) as caught:
            load_array(source, "weight")
        assert caught.value.field == "weight"
        assert str(caught.value).count("got") == 1
