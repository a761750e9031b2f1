import struct

import numpy as np
import pytest

from logitsieve.llamacpp.host import TensorLayout
from logitsieve.llamacpp.xllamacpp import MODEL, ContextLayout, LlamaParameters

# Defaults of llama_context_params in llama.h of three builds, field by field.
SIZES = struct.pack("<4i", 512, 2048, 512, 1)
ROPE = struct.pack("<6f", 0, 0, -1, -1, -1, -1) + struct.pack("<if", 0, -1)
OLD_ROPE = struct.pack("<6f", 0, 0, -1, 1, 32, 1) + struct.pack("<if", 0, -1)
FLAGS = bytes([0, 1, 1, 1, 1, 0])
TYPES = struct.pack("<2i", 1, 1)
BUILDS = {
    "2025": (
        SIZES + struct.pack("<2i", 4, 4) + struct.pack("<4i", -1, -1, -1, -1) + OLD_ROPE,
        bytes(16) + TYPES + bytes(16) + FLAGS,
        ContextLayout(sizes=0, threads=16, flash=36, hook=72, flags=112),
    ),
    "early 2026": (
        SIZES + struct.pack("<9i", 0, 0, 4, 4, 0, -1, -1, -1, -1) + ROPE,
        bytes(4) + bytes(16) + TYPES + bytes(16) + FLAGS,
        ContextLayout(sizes=0, threads=24, flash=48, hook=88, flags=128),
    ),
    "2026.10": (
        SIZES + struct.pack("<10i", 0, 0, 1, 4, 4, 0, -1, -1, -1, -1) + ROPE,
        bytes(16) + TYPES + bytes(24) + FLAGS,
        ContextLayout(sizes=0, threads=28, flash=52, hook=88, flags=136),
    ),
}


def parameters(raw: bytes) -> LlamaParameters:
    made = LlamaParameters()
    made.bytes[: len(raw)] = list(raw)
    return made


@pytest.mark.parametrize("build", BUILDS)
def test_the_context_of_a_build_is_found_by_its_defaults_alone(build: str) -> None:
    first, rest, layout = BUILDS[build]
    assert ContextLayout.found_in(parameters(first + rest)) == layout
    for place in (0, 20, 60):
        raw = bytearray(first + rest)
        raw[place : place + 4] = struct.pack("<i", 77)
        with pytest.raises(ValueError, match="llama_context_params of an unknown layout"):
            ContextLayout.found_in(parameters(bytes(raw)))


def test_a_model_and_a_tensor_are_found_by_their_defaults() -> None:
    raw = bytes(16) + struct.pack("<2i", -1, 1)
    assert parameters(raw).places(MODEL, "llama_model_params") == {"gpu_layers": 16}
    with pytest.raises(ValueError, match="llama_model_params of an unknown layout"):
        parameters(bytes(16)).places(MODEL, "llama_model_params")
    words = np.zeros(48, np.int64)
    words[2:10] = [3, 5, 1, 1, 4, 12, 60, 60]
    words[31] = 12345
    assert TensorLayout.found_in(words, 256, 12345) == TensorLayout(2, 31, 32)
    for wrong in ((words, 257, 12345), (words, 256, 77), (words * 2, 256, 24690)):
        with pytest.raises(ValueError, match="ggml_tensor"):
            TensorLayout.found_in(*wrong)
