import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from safetensors.torch import save_file as save_tensors

from logitsieve.api.errors import InvalidRequest
from logitsieve.index_builder.arrays import ROUNDED_AT_ONCE, is_gguf, load_array, matrix, vector
from logitsieve.utils.floats import LARGEST, STORED, narrowed, widened
from tests.refusals import refused

WIDE = np.random.default_rng(5).standard_normal((9, 4))
FLOAT16 = WIDE.astype(np.float16)
BFLOAT16 = narrowed(WIDE, "bfloat16")
TORCH_BFLOAT16 = torch.from_numpy(widened(BFLOAT16)).bfloat16()
FORMS: dict[str, tuple[Any, np.ndarray]] = {
    "float32": (WIDE.astype(np.float32), WIDE.astype(np.float32)),
    "float64": (WIDE, WIDE.astype(np.float32)),
    "lists": (WIDE.tolist(), WIDE.astype(np.float32)),
    "float16": (FLOAT16, FLOAT16),
    "bfloat16 of ml_dtypes": (BFLOAT16.view(ml_dtypes.bfloat16), BFLOAT16),
    "bits of bfloat16": (BFLOAT16, BFLOAT16),
    "strided": (np.repeat(FLOAT16, 2, axis=1)[:, ::2], FLOAT16),
    "torch.float16": (torch.from_numpy(FLOAT16), FLOAT16),
    "torch.bfloat16": (TORCH_BFLOAT16, BFLOAT16),
    "torch.float64": (torch.from_numpy(WIDE), WIDE.astype(np.float32)),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_type_that_the_index_has_is_kept_and_others_become_float32(form: str) -> None:
    given, expected = FORMS[form]
    found = matrix(given, "given")
    assert found.dtype == expected.dtype
    assert found.flags.c_contiguous
    np.testing.assert_array_equal(found, expected)


def test_halves_are_not_copied_and_rounded_once() -> None:
    for array in (WIDE.astype(np.float32), FLOAT16, BFLOAT16):
        assert np.shares_memory(matrix(array, "given"), array)
    # Just above the middle of two bfloat16 neighbours, and float32 rounds onto the middle.
    number = 1 + 2.0**-8 + 2.0**-40
    for given in (np.array([[number]]), torch.tensor([[number]], dtype=torch.float64)):
        assert widened(matrix(given, "bfloat16"))[0, 0] == 1 + 2.0**-7
    bits = narrowed(np.array([[1.0, -1e6]]), "bfloat16")
    with pytest.raises(InvalidRequest, match="-999424, infinite as float16"):
        matrix(bits, "float16")


FILES: dict[str, tuple[Callable[[Path], None], np.ndarray]] = {
    "W.npy": (lambda file: np.save(file, FLOAT16), FLOAT16),
    "W.npz": (lambda file: np.savez(file, W=FLOAT16), FLOAT16),
    "W.safetensors": (lambda file: save_file({"W": FLOAT16}, file), FLOAT16),
    "B.safetensors": (lambda file: save_tensors({"W": TORCH_BFLOAT16}, file), BFLOAT16),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_keeps_its_type(name: str, tmp_path: Path) -> None:
    write, expected = FILES[name]
    write(tmp_path / name)
    found = matrix(f"{tmp_path}/{name}" + ":W" * (name != "W.npy"), "given")
    np.testing.assert_array_equal(found, expected, strict=True)


@pytest.mark.parametrize("dtype", STORED)
@pytest.mark.parametrize("form", FORMS)
def test_what_is_asked_for_is_made_with_one_rounding(form: str, dtype: str) -> None:
    given, kept = FORMS[form]
    wide = kept if kept.dtype == np.float32 else widened(kept)
    exact = WIDE if "float64" in form or form == "lists" else wide
    found = matrix(given, dtype)
    assert found.dtype == STORED[dtype]
    np.testing.assert_array_equal(found, narrowed(exact, dtype))


@pytest.mark.parametrize(
    ("dtype", "number", "shown"),
    [
        ("float16", 65520.0, "65520"),
        ("bfloat16", 3.4e38, "3.4e+38"),
        ("float32", -1e300, "-1e+300"),
    ],
)
def test_what_becomes_infinite_is_named(dtype: str, number: float, shown: str) -> None:
    rows = np.zeros((ROUNDED_AT_ONCE // 4 + 3, 4))
    rows[ROUNDED_AT_ONCE // 4 + 1, 2] = number
    with pytest.raises(InvalidRequest) as refused:
        matrix(rows, dtype)
    assert refused.value.field == f"weight[{ROUNDED_AT_ONCE // 4 + 1}, 2]"
    assert refused.value.got == f"{shown}, infinite as {dtype}"
    assert f"up to {LARGEST[dtype]:g}" in refused.value.allowed


WRONG: dict[str, Any] = {
    "a vector": WIDE[0],
    "integers": np.ones((3, 4), np.int32),
    "no rows": np.ones((0, 4), np.float16),
    "NaN": np.full((3, 4), np.nan, np.float16),
    "infinity": np.full((3, 4), np.inf, np.float16),
    "NaN of bfloat16": np.full((3, 4), 0x7FC0, np.uint16),
    "-infinity of bfloat16": np.full((3, 4), 0xFF80, np.uint16),
    "no file": "nothing.npy",
}


@pytest.mark.parametrize("dtype", ["given", *STORED])
@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_finite_matrix_is_refused(case: str, dtype: str) -> None:
    with refused("weight"):
        matrix(WRONG[case], dtype)


def test_a_bias_is_float32_whatever_it_was() -> None:
    for given in (WIDE[:, 0], FLOAT16[:, 0], BFLOAT16[:, 0]):
        found = vector(given, 9)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, WIDE[:, 0], rtol=2**-7)
    assert not vector(None, 9).any()
    with pytest.raises(InvalidRequest, match="bias"):
        vector(WIDE[:, 0], 8)


def test_a_tensor_beside_others_that_an_index_could_not_hold(tmp_path: Path) -> None:
    """Types, ranks, names and addresses as the library that defines the format writes them."""
    tensors = {
        "w": WIDE.astype(np.float32),
        "b" * 70: np.ones(3, bool),
        "five": np.zeros((1, 1, 1, 1, 2), np.int8),
        "none": np.zeros((0, 4), np.float32),
        "one": np.array(2.5),
    }
    save_file(tensors, tmp_path / "any.safetensors", metadata={"note": "x" * (1 << 20)})
    for name in ("w", "none", "one"):
        loaded = load_array(f"{tmp_path}/any.safetensors:{name}")
        np.testing.assert_array_equal(loaded, tensors[name])
        assert loaded.dtype == tensors[name].dtype
    for name in ("b" * 70, "five"):
        with pytest.raises(InvalidRequest, match="F16, BF16, F32 or F64"):
            load_array(f"{tmp_path}/any.safetensors:{name}")


def test_a_header_with_more_than_the_format_needs_is_read_as_by_its_library(tmp_path: Path) -> None:
    rows = np.arange(32, dtype=np.float32).reshape(4, 8)
    entry = {"dtype": "F32", "shape": [4, 8], "data_offsets": [0, rows.nbytes]}
    headers = [{"__metadata__": None, "W": entry}, {"W": {**entry, "note": {"by": None}}}]
    for number, header in enumerate(headers):
        text, path = json.dumps(header).encode(), tmp_path / f"{number}.safetensors"
        path.write_bytes(len(text).to_bytes(8, "little") + text + rows.tobytes())
        np.testing.assert_array_equal(load_file(path)["W"], rows)
        np.testing.assert_array_equal(load_array(f"{path}:W"), rows)


@pytest.mark.parametrize("suffix", [".safetensors:W", ".npy", ".npz:W", ".bin"])
def test_a_file_that_was_not_downloaded_is_named(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"W{suffix.partition(':')[0]}"
    path.write_bytes(b"version https://git-lfs.example/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(InvalidRequest, match="a Git LFS pointer"):
        load_array(f"{tmp_path}/W{suffix}", "weight")
    path.write_bytes(b"<!DOCTYPE html><html><title>404</title></html>")
    with pytest.raises(InvalidRequest, match="a web page"):
        load_array(f"{tmp_path}/W{suffix}", "weight")


def test_a_gguf_file_is_one_by_its_first_bytes(tmp_path: Path) -> None:
    for name, data in {"sha256-01": b"GGUF....", "W.GGUF": b"GGUF", "model.bin": b"GGUF"}.items():
        (tmp_path / name).write_bytes(data)
        assert is_gguf(tmp_path / name)
        assert is_gguf(str(tmp_path / name))
    (tmp_path / "W.npy").write_bytes(b"\x93NUMPY")
    assert not any(is_gguf(one) for one in (tmp_path / "W.npy", tmp_path, "none.bin", FLOAT16))
    assert is_gguf("none.gguf")
