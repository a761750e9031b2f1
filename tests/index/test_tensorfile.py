import json
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.numpy import load_file

from logitsieve.api.errors import IndexUnreadable
from logitsieve.index.tensorfile import ALIGNMENT, DTYPES, MAX_HEADER, map_tensors, pieces
from tests.index.samples import replace_file, tensor_bytes
from tests.refusals import unreadable

Entry = dict[str, Any]


def entry(start: int, stop: int, shape: Any = None, dtype: Any = "U8") -> Entry:
    shape = [stop - start] if shape is None else shape
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def write(path: Path, tensors: dict[str, np.ndarray], metadata: dict[str, str]) -> Path:
    replace_file(path, b"".join(bytes(piece) for piece in pieces(tensors, metadata)))
    return path


arrays = st.sampled_from(list(DTYPES.values())).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(max_dims=4, max_side=5))
)


@given(tensors=st.dictionaries(st.from_regex("[a-z][a-z0-9_]{0,9}", fullmatch=True), arrays))
def test_what_is_written_is_read_here_and_by_the_safetensors_library(
    tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, np.ndarray]
) -> None:
    tensors |= {"a" * 64: np.zeros(1, np.uint8)}
    path = write(tmp_path_factory.getbasetemp() / "some.safetensors", tensors, {"key": "value"})
    ours, theirs = map_tensors(path), load_file(path)
    assert ours.metadata == {"key": "value"}
    assert ours.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        for read in (ours.tensors[name], theirs[name]):
            assert (read.dtype, read.shape) == (tensor.dtype, tensor.shape)
            assert read.tobytes() == tensor.tobytes()
        assert ours.tensors[name].ctypes.data % ALIGNMENT == 0


def test_a_tensor_is_the_mapping_itself_and_nothing_is_copied_to_be_written(tmp_path: Path) -> None:
    weight = np.arange(12, dtype=np.float32).reshape(3, 4)
    tensor = map_tensors(write(tmp_path / "one", {"weight": weight}, {})).tensors["weight"]
    assert type(tensor) is np.ndarray  # numba takes a subclass the slow way
    flags = tensor.flags
    assert (flags.owndata, flags.writeable, flags.c_contiguous) == (False, False, True)
    weight = np.zeros((5, 16), np.float32)
    [_, body] = pieces({"weight": weight}, {})
    assert np.shares_memory(np.frombuffer(body, np.float32), weight)
    for path, reason in ((tmp_path / "absent", "missing"), (tmp_path, "not a regular file")):
        with unreadable(path, reason):
            map_tensors(path)


HOSTILE: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "too short"),
    "seven bytes": (bytes(7), "too short"),
    "only a length": (struct.pack("<Q", 56), "header of 56 bytes"),
    "length of 2^64 - 1": (b"\xff" * 8 + b" " * 64, "header of 18446744073709551615 bytes"),
    "header over the limit": (
        struct.pack("<Q", MAX_HEADER + 56) + b" " * (MAX_HEADER + 56),
        "header of",
    ),
    "data not aligned": (struct.pack("<Q", 2) + b"{}", "not at a multiple of 64"),
    "not JSON": (tensor_bytes(b'{"a": '), "not JSON"),
    "not UTF-8": (tensor_bytes(b'{"\xff": 1}'), "not UTF-8"),
    "nested deeply": (tensor_bytes(b"[" * 200_000), "nested too deeply"),
    "a number of 5,000 digits": (tensor_bytes(b'{"a": ' + b"9" * 5000 + b"}"), "integer string"),
    "a list": (tensor_bytes([]), "not a JSON object"),
    "a key twice": (tensor_bytes(b'{"a": {"dtype": "U8", "dtype": "U8"}}'), "'dtype' occurs twice"),
    "a tensor twice": (tensor_bytes(b'{"a": 1, "a": 2}'), "'a' occurs twice"),
    "a name without end": (tensor_bytes({"a" * 65: entry(0, 1)}, b"x"), "65 characters"),
    "metadata of numbers": (tensor_bytes({"__metadata__": {"a": 1}}), "strings to strings"),
    "metadata as a list": (tensor_bytes({"__metadata__": []}), "strings to strings"),
    "an entry without shape": (
        tensor_bytes({"a": {"dtype": "U8", "data_offsets": [0, 1]}}, b"x"),
        "needs exactly",
    ),
    "an entry with more": (tensor_bytes({"a": {**entry(0, 1), "b": 0}}, b"x"), "needs exactly"),
    "an entry that is text": (tensor_bytes({"a": "U8"}), "needs exactly"),
    "an unknown dtype": (tensor_bytes({"a": entry(0, 1, dtype="F7")}, b"x"), "dtype 'F7'"),
    "a dtype list": (tensor_bytes({"a": entry(0, 1, dtype=["U8"])}, b"x"), "dtype ['U8']"),
    **{
        f"the shape {shape}": (tensor_bytes({"a": entry(0, 1, shape)}, b"x"), "no usable shape")
        for shape in ([-1], [-1, -1], [1.0], [True], [], [1] * 5)
    },
    "an empty side": (tensor_bytes({"a": entry(0, 0, [0])}), "no usable shape"),
    "a shape that overflows": (
        tensor_bytes({"a": entry(0, 1, [2**62, 2**62])}, b"x"),
        "not what its shape takes",
    ),
    "three offsets": (
        tensor_bytes({"a": {**entry(0, 1), "data_offsets": [0, 1, 2]}}, b"x"),
        "no usable data_offsets",
    ),
    "negative offsets": (tensor_bytes({"a": entry(-64, -63)}, b"x"), "no usable data_offsets"),
    "offsets backwards": (tensor_bytes({"a": entry(64, 0, [64])}, b"x" * 64), "spans -64 bytes"),
    "a shape too small": (tensor_bytes({"a": entry(0, 64, [63])}, b"x" * 64), "spans 64 bytes"),
    "past the end": (tensor_bytes({"a": entry(0, 65)}, b"x" * 64), "the file has"),
    "more than described": (tensor_bytes({"a": entry(0, 64)}, b"x" * 65), "the file has"),
    "data without tensors": (tensor_bytes({}, b"x"), "the file has"),
    "a hole": (tensor_bytes({"a": entry(0, 64), "b": entry(128, 129)}, b"x" * 129), "a hole"),
    "a hole in front": (tensor_bytes({"a": entry(64, 65)}, b"x" * 65), "a hole"),
    "an overlap": (tensor_bytes({"a": entry(0, 128), "b": entry(64, 128)}, b"x" * 128), "overlaps"),
    "not at a multiple of 64": (
        tensor_bytes({"_pad_0": entry(0, 8), "a": entry(8, 9)}, b"x" * 9),
        "'a' does not begin",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused_by_name(tmp_path: Path, name: str) -> None:
    data, reason = HOSTILE[name]
    path = tmp_path / "hostile.safetensors"
    path.write_bytes(data)
    with unreadable(path, reason, most=400):
        map_tensors(path)


@given(data=st.data())
def test_any_header_at_all(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    small = st.integers(-1, 200)
    numbers, dtype = st.lists(small, max_size=3), st.sampled_from(["U8", "F32", "BF16"])
    fields = {"dtype": dtype, "shape": numbers, "data_offsets": numbers}
    tensor = st.fixed_dictionaries(fields)
    header = data.draw(st.dictionaries(st.text(max_size=4), tensor, max_size=3))
    text = bytearray(json.dumps(header).encode())
    for place in data.draw(st.lists(st.integers(0, len(text) - 1), max_size=2)):
        text[place] ^= data.draw(st.integers(1, 255))
    body = b"x" * data.draw(st.integers(0, 200))
    replace_file(path, tensor_bytes(bytes(text), body))
    with suppress(IndexUnreadable):
        read = map_tensors(path)
        assert sum(tensor.nbytes for tensor in read.tensors.values()) <= len(body)
