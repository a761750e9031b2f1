"""Find the layout of llama.cpp's structures by the default values that a build sets.

llama_context_params and llama_model_params gain fields every few weeks, but rarely lose or move
any. The defaults are read as letters, one per 32-bit word, and must match one pattern; other builds
are refused. The structures are passed by value, in a buffer longer than the library's own.
"""

from __future__ import annotations

import ctypes
import re
import struct
from typing import Any, NamedTuple, Self

import numpy as np

WORDS = 64
BYTES = 4 * WORDS


class LlamaParameters(ctypes.Structure):
    """A parameter structure as bytes, longer than any of llama.cpp's."""

    _fields_ = (("bytes", ctypes.c_uint8 * BYTES),)

    def set(self, code: str, offset: int, value: int) -> None:
        """Write a number of `struct` format `code` at `offset`."""
        struct.pack_into(code, self.bytes, offset, value)


LETTERS = {
    struct.pack("<i", 512): "c",
    struct.pack("<i", 2048): "b",
    struct.pack("<i", 0): "0",
    struct.pack("<i", 1): "1",
    struct.pack("<i", 4): "4",
    struct.pack("<i", -1): "m",
    struct.pack("<f", -1.0): "f",
    struct.pack("<f", 1.0): "g",
    struct.pack("<f", 32.0): "h",
    b"\x00\x01\x01\x01": "B",  # flags: the first false, three true
}


def _letters(parameters: LlamaParameters) -> str:
    raw = bytes(parameters.bytes)
    words = (raw[start : start + 4] for start in range(0, BYTES, 4))
    return "".join(LETTERS.get(word, "?") for word in words)


# n_ctx, n_batch, n_ubatch, n_seq_max, a few counts, both numbers of threads, the enumerations,
# rope's two factors and yarn's four, yarn_orig_ctx, defrag_thold, cb_eval and its argument, the
# types of K and V (float16), pointers, and the flags from `embeddings` on.
_CONTEXT = re.compile(
    r"(?P<sizes>cbc1)[01]{0,4}(?P<threads>44)0?m{3,4}00f[fg][fgh][fg]0f0?"
    r"(?P<hook>0000)11(?:00){2,4}(?P<flags>B)"
)
# Pointers, n_gpu_layers, split_mode (by layers), main_gpu.
_MODEL = re.compile(r"0000(?P<gpu_layers>m)1")


class ContextLayout(NamedTuple):
    """Byte offsets into llama_context_params."""

    sizes: int  # n_ctx, n_batch, n_ubatch and n_seq_max, 32 bits each
    threads: int  # n_threads and n_threads_batch
    hook: int  # cb_eval and its argument, 64 bits each
    flags: int  # bytes: embeddings, offload_kqv, no_perf, op_offload, swa_full, kv_unified

    @classmethod
    def found_in(cls, defaults: LlamaParameters) -> Self:
        """Match a build's defaults; ValueError for an unknown layout."""
        match = _CONTEXT.match(letters := _letters(defaults))
        if match is None:
            raise ValueError(f"llama_context_params of an unknown layout ({letters[:40]})")
        layout = cls(*(4 * match.start(field) for field in cls._fields))
        if layout.hook % 8:
            raise ValueError(f"llama_context_params with cb_eval at {layout.hook}")
        return layout


class ModelLayout(NamedTuple):
    """Byte offsets into llama_model_params."""

    gpu_layers: int  # 32 bits

    @classmethod
    def found_in(cls, defaults: LlamaParameters) -> Self:
        """Match a build's defaults; ValueError for an unknown layout."""
        match = _MODEL.match(letters := _letters(defaults))
        if match is None:
            raise ValueError(f"llama_model_params of an unknown layout ({letters[:8]})")
        return cls(4 * match.start("gpu_layers"))


class TensorLayout(NamedTuple):
    """Offsets, in 64-bit words, into a ggml_tensor."""

    columns: int  # ne[0]; ne[1] to ne[3] and then nb[0] to nb[3] follow
    data: int
    name: int

    @classmethod
    def found_in(cls, words: Any, name: int, data: int) -> Self:
        """Find the layout by a float32 tensor [5, 3], its name's offset and data's address."""
        wanted = np.array([3, 5, 1, 1, 4, 12, 60, 60])
        places = [i for i in range(len(words) - 7) if (words[i : i + 8] == wanted).all()]
        pointers = np.flatnonzero(words == data)
        if len(places) != 1 or len(pointers) != 1 or name % 8 or not 0 < name < 8 * len(words):
            raise ValueError("ggml_tensor of an unknown layout")
        return cls(places[0], int(pointers[0]), name // 8)
