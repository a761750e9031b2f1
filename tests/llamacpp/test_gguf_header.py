import re
import struct
from pathlib import Path

import numpy as np
import pytest

from logitsieve.llamacpp.gguf_header import Strings, read_header
from tests.llamacpp.small_model import Make, tokens
from tests.refusals import refused


def test_metadata_and_tensors_are_those_that_gguf_reads(make_gguf: Make) -> None:
    from gguf import GGUFReader

    path = make_gguf(head="Q8_0")
    header, reader = read_header(path, "gguf"), GGUFReader(path)
    assert header.tensors.keys() == {tensor.name for tensor in reader.tensors}
    for tensor in reader.tensors:
        span = header.tensors[tensor.name]
        assert span.kind == tensor.tensor_type
        assert list(span.shape) == tensor.shape[::-1].tolist()
        assert span.offset == tensor.data_offset
    assert header.metadata["general.architecture"] == "llama"
    assert header.metadata["llama.embedding_length"] == 64
    listed = header.metadata["tokenizer.ggml.tokens"]
    assert isinstance(listed, Strings)
    assert listed.read() == tokens()[0]
    scores = np.array([len(word) for word in tokens()[0]], np.float32)
    np.testing.assert_array_equal(header.metadata["tokenizer.ggml.scores"], scores)


def begun(version: int = 3, tensors: int = 0, pairs: int = 0) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, pairs)


KEY = struct.pack("<Q", 1) + b"k"
BAD = {
    "empty": (b"", "does not begin with GGUF"),
    "other": (b"PK\3\4" + bytes(100), "does not begin with GGUF"),
    "version": (begun(version=1), "version 1 of GGUF"),
    "big-endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
    "pointer": (b"version https://git-lfs.example/spec/v1\noid sha256:0\n", "a Git LFS pointer"),
    "page": (b"\n<!DOCTYPE html><html>", "a web page"),
    "older": (b"tjgg" + bytes(40), "a GGJT file"),
    "cut counts": (begun()[:10], "truncated"),
    "cut pairs": (begun(pairs=1), "truncated"),
    "endless string": (begun(pairs=1) + struct.pack("<Q", 1 << 62), "truncated"),
    "type": (begun(pairs=1) + KEY + struct.pack("<I", 77), "unknown type 77"),
    "endless array": (begun(pairs=1) + KEY + struct.pack("<IIQ", 9, 6, 1 << 60), "truncated"),
    "dimensions": (begun(tensors=1) + KEY + struct.pack("<I", 9), "9 dimensions"),
    "alignment": (
        begun(pairs=1) + struct.pack("<Q", 17) + b"general.alignment" + struct.pack("<II", 4, 0),
        "general.alignment is 0",
    ),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_file_that_is_no_whole_gguf_is_named(kind: str, tmp_path: Path) -> None:
    path, (data, reason) = tmp_path / "bad.gguf", BAD[kind]
    path.write_bytes(data)
    with refused("weight", rf"{re.escape(str(path))}.*{reason}"):
        read_header(path, "weight")
    with refused("gguf", "No such file"):
        read_header(tmp_path / "none.gguf", "gguf")
