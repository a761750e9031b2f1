import io
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_torch

from logitsieve.api.errors import InvalidRequest
from logitsieve.index_builder.data.arrays import load_array
from logitsieve.index_builder.data.contexts import Contexts, open_contexts
from tests.refusals import refused

ROWS, DIM = 50, 6


@pytest.fixture
def values() -> np.ndarray:
    return np.random.default_rng(1).standard_normal((ROWS, DIM)).astype(np.float16)


def in_memory(values: np.ndarray, folder: Path) -> object:
    return values


def as_list(values: np.ndarray, folder: Path) -> object:
    return values.tolist()


def as_tensor(values: np.ndarray, folder: Path) -> object:
    return torch.from_numpy(values)


def as_npy(values: np.ndarray, folder: Path) -> object:
    np.save(folder / "h.npy", values)
    return folder / "h.npy"


def as_fortran_float32(values: np.ndarray, folder: Path) -> object:
    np.save(folder / "h.npy", np.asfortranarray(values.astype(np.float32)))
    return str(folder / "h.npy")


def as_shards(values: np.ndarray, folder: Path) -> object:
    for number, shard in enumerate(np.array_split(values, 11)):
        np.save(folder / f"{number:05}.npy", shard)
    np.save(folder / "00011.npy", values[:0])
    np.save(folder / "weight.npy", values)
    return folder


def as_npz(values: np.ndarray, folder: Path) -> object:
    np.savez(folder / "h.npz", W=np.zeros(3), H=values)
    return f"{folder / 'h.npz'}:H"


def as_compressed_npz(values: np.ndarray, folder: Path) -> object:
    np.savez_compressed(folder / "h.npz", H=values)
    return f"{folder / 'h.npz'}:H"


def as_safetensors(values: np.ndarray, folder: Path) -> object:
    save_file({"other": np.zeros(3, np.float32), "h": values}, folder / "h.safetensors")
    return f"{folder / 'h.safetensors'}:h"


FORMS = [
    *(in_memory, as_list, as_tensor, as_npy, as_fortran_float32, as_shards, as_npz),
    *(as_compressed_npz, as_safetensors),
]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_rows(
    form: Callable[[np.ndarray, Path], object], values: np.ndarray, tmp_path: Path
) -> None:
    contexts = open_contexts(form(values, tmp_path), DIM)
    expected = values.astype(np.float32)
    assert (contexts.rows, contexts.dim) == (ROWS, DIM)
    blocks = list(contexts.blocks(7))
    assert all(block.dtype == np.float32 and 0 < len(block) <= 7 for block in blocks)
    np.testing.assert_array_equal(np.concatenate(blocks), expected)
    rows = np.array([49, 0, 13, 13, 48, 5])
    np.testing.assert_array_equal(contexts.take(rows), expected[rows])
    np.testing.assert_array_equal(
        np.concatenate(list(contexts.between(3, 41).blocks())), expected[3:41]
    )


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
def test_blocks_spread_over_the_rows(
    rows: int, blocks: int, expected: list[int], values: np.ndarray
) -> None:
    shards = [values[:17], values[17:26], values[26:]]
    found = Contexts(shards).spread(rows, blocks)
    assert found.rows == len(expected)
    np.testing.assert_array_equal(
        found.take(np.arange(found.rows)), values[expected].astype(np.float32)
    )


@pytest.mark.parametrize(("rows", "expected"), [(4, [0, 12, 25, 37]), (99, list(range(50)))])
def test_a_sample_is_spread(rows: int, expected: list[int], values: np.ndarray) -> None:
    shards = [values[:17], values[17:26], values[26:]]
    np.testing.assert_array_equal(
        Contexts(shards).sample(rows), values[expected].astype(np.float32)
    )


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


def pickled(folder: Path) -> str:
    np.save(folder / "h.npy", np.array([{"a": 1}], object), allow_pickle=True)
    return f"{folder}/h.npy"


def pickled_member(folder: Path) -> str:
    np.savez(folder / "h.npz", H=np.array([{"a": 1}], object))
    return f"{folder}/h.npz:H"


def truncated(folder: Path) -> str:
    np.save(folder / "h.npy", np.zeros((ROWS, DIM), np.float32))
    data = (folder / "h.npy").read_bytes()
    (folder / "h.npy").write_bytes(data[:-9])
    return f"{folder}/h.npy"


def garbage(name: str) -> Callable[[Path], str]:
    def write(folder: Path) -> str:
        file, _, _ = name.partition(":")
        (folder / file).write_bytes(b"this is no array, but long enough to be read as one")
        return f"{folder}/{name}"

    write.__name__ = f"garbage {name}"
    return write


def empty(folder: Path) -> str:
    (folder / "h.npy").touch()
    return f"{folder}/h.npy"


def missing(folder: Path) -> str:
    return f"{folder}/nothing.npy"


def no_shards(folder: Path) -> str:
    np.save(folder / "weight.npy", np.zeros((3, DIM)))
    return str(folder)


def a_shard_is_missing(folder: Path) -> str:
    for number in (0, 2):
        np.save(folder / f"{number:05}.npy", np.zeros((3, DIM)))
    return str(folder)


def two_shards_of_one_number(folder: Path) -> str:
    for name in ("0.npy", "00000.npy", "00001.npy"):
        np.save(folder / name, np.zeros((3, DIM)))
    return str(folder)


def member_that_is_no_array(folder: Path) -> str:
    with zipfile.ZipFile(folder / "h.npz", "w") as archive:
        archive.writestr("H", b"text")
    return f"{folder}/h.npz:H"


def npy_named_npz(folder: Path) -> str:
    with (folder / "h.npz").open("wb") as stream:
        np.save(stream, np.zeros((3, DIM)))
    return f"{folder}/h.npz:H"


def unnamed(folder: Path) -> str:
    np.savez(folder / "h.npz", H=np.zeros((3, DIM)))
    return f"{folder}/h.npz"


def unknown_member(folder: Path) -> str:
    np.savez(folder / "h.npz", H=np.zeros((3, DIM)))
    return f"{folder}/h.npz:G"


def unknown_tensor(folder: Path) -> str:
    save_file({"h": np.zeros((3, DIM), np.float32)}, folder / "h.safetensors")
    return f"{folder}/h.safetensors:g"


def integers(folder: Path) -> str:
    save_file({"h": np.zeros((3, DIM), np.int32)}, folder / "h.safetensors")
    return f"{folder}/h.safetensors:h"


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


HOSTILE = [
    *(pickled, pickled_member, truncated, garbage("h.npy"), garbage("h.npz:H")),
    *(garbage("h.safetensors:h"), garbage("h.txt"), garbage("h.pt"), empty, missing, no_shards),
    *(a_shard_is_missing, two_shards_of_one_number, member_that_is_no_array, npy_named_npz),
    *(unnamed, unknown_member, unknown_tensor, integers, broken_member),
]


@pytest.mark.parametrize("write", HOSTILE, ids=lambda write: write.__name__)
def test_hostile_files_are_refused_by_name(write: Callable[[Path], str], tmp_path: Path) -> None:
    source = write(tmp_path)
    with pytest.raises(InvalidRequest) as caught:
        open_contexts(source, DIM)
    assert caught.value.field == "contexts"
    assert str(tmp_path) in str(caught.value)
    assert "allow_pickle" not in str(caught.value)
    if not Path(source).is_dir():
        with pytest.raises(InvalidRequest) as caught:
            load_array(source, "weight")
        assert caught.value.field == "weight"
        assert str(caught.value).count("got") == 1
