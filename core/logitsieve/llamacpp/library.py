"""llama.cpp's C API in the wheel of `xllamacpp`, called by ctypes.

Its structures change between builds, and no function tells their layout. llama_context_params and
llama_model_params often gain fields but rarely lose or move any: a build's defaults are read as
letters, one per 32-bit word, and must match one pattern, or the build is refused. The structures
are passed by value, in a longer buffer.
"""

import ctypes
import os
import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import files, version
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.utils.environment import require

# Turns of an idle OpenMP thread's waiting loop, some 60 microseconds. By default threads of
# llama.cpp wait for milliseconds after each token, on the cores of our output layer.
IDLE_TURNS = {"GOMP_SPINCOUNT": "5000"}
WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")  # the user's own

PARAMETER_BYTES = 256

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


class LlamaParameters(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_uint8 * PARAMETER_BYTES),)

    def set(self, code: str, offset: int, value: int) -> None:
        struct.pack_into(code, self.bytes, offset, value)

    def places(self, pattern: re.Pattern[str], name: str) -> dict[str, int]:
        """Return the byte offsets of a pattern's groups; ValueError for other defaults."""
        raw = bytes(self.bytes)
        words = (raw[start : start + 4] for start in range(0, PARAMETER_BYTES, 4))
        match = pattern.match(letters := "".join(LETTERS.get(word, "?") for word in words))
        if match is None:
            raise ValueError(f"{name} of an unknown layout ({letters[:40]})")
        return {field: 4 * match.start(field) for field in match.groupdict()}


# n_ctx, n_batch, n_ubatch, n_seq_max, a few counts, both numbers of threads, the enumerations,
# rope's two factors and yarn's four, yarn_orig_ctx, defrag_thold, cb_eval and its argument, the
# types of K and V (float16), pointers, and the flags from `embeddings` on.
_CONTEXT = re.compile(
    r"(?P<sizes>cbc1)[01]{0,4}(?P<threads>44)0?m{2,3}(?P<flash>m)00f[fg][fgh][fg]0f0?"
    r"(?P<hook>0000)11(?:00){2,4}(?P<flags>B)"
)
# Pointers, n_gpu_layers, split_mode (by layers), main_gpu.
MODEL = re.compile(r"0000(?P<gpu_layers>m)1")


class ContextLayout(NamedTuple):
    """Byte offsets into llama_context_params."""

    sizes: int  # n_ctx, n_batch, n_ubatch and n_seq_max, 32 bits each
    threads: int  # n_threads and n_threads_batch
    flash: int  # flash_attn_type, 32 bits; 0: none
    hook: int  # cb_eval and its argument, 64 bits each
    flags: int  # bytes: embeddings, offload_kqv, no_perf, op_offload, swa_full, kv_unified

    @classmethod
    def found_in(cls, defaults: LlamaParameters) -> Self:
        layout = cls(**defaults.places(_CONTEXT, "llama_context_params"))
        if layout.hook % 8:
            raise ValueError(f"llama_context_params with cb_eval at {layout.hook}")
        return layout


class TensorLayout(NamedTuple):
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


WHEEL = "xllamacpp"
FLOAT32 = 0  # ggml's number
ARENA_BYTES, ARENA_ALIGNED = 1 << 16, 64


class LlamaBatch(ctypes.Structure):
    """llama_batch; `llama_batch_init` allocates its arrays and confirms these fields."""

    _fields_ = (
        ("count", ctypes.c_int32),
        ("tokens", ctypes.POINTER(ctypes.c_int32)),
        ("embeddings", ctypes.c_void_p),
        ("positions", ctypes.POINTER(ctypes.c_int32)),
        ("sequence_counts", ctypes.POINTER(ctypes.c_int32)),
        ("sequences", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("outputs", ctypes.POINTER(ctypes.c_int8)),
    )


class _Arena(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_size_t), ("memory", ctypes.c_void_p), ("bare", ctypes.c_bool))


_P, _I, _L, _S = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_size_t
_C, _B, _U = ctypes.c_char_p, ctypes.c_bool, ctypes.c_uint32
SIGNATURES: dict[str, tuple[Any, ...]] = {  # the result first
    "llama_backend_init": (None,),
    "llama_print_system_info": (_C,),
    "llama_log_get": (None, _P, _P),
    "llama_log_set": (None, _P, _P),
    "llama_model_default_params": (LlamaParameters,),
    "llama_context_default_params": (LlamaParameters,),
    "llama_model_load_from_file": (_P, _C, LlamaParameters),
    "llama_model_free": (None, _P),
    "llama_model_get_vocab": (_P, _P),
    "llama_model_has_encoder": (_B, _P),
    "llama_model_is_recurrent": (_B, _P),
    "llama_model_is_hybrid": (_B, _P),
    "llama_model_n_ctx_train": (_I, _P),
    "llama_vocab_n_tokens": (_I, _P),
    "llama_vocab_type": (_I, _P),
    "llama_vocab_bos": (_I, _P),
    "llama_vocab_get_add_bos": (_B, _P),
    "llama_vocab_is_eog": (_B, _P, _I),
    "llama_vocab_get_attr": (_U, _P, _I),
    "llama_tokenize": (_I, _P, _C, _I, _P, _I, _B, _B),
    "llama_token_to_piece": (_I, _P, _I, _P, _I, _I, _B),
    "llama_init_from_model": (_P, _P, LlamaParameters),
    "llama_free": (None, _P),
    "llama_n_ctx": (_U, _P),
    "llama_set_n_threads": (None, _P, _I, _I),
    "llama_pooling_type": (_I, _P),
    "llama_batch_init": (LlamaBatch, _I, _I, _I),
    "llama_batch_free": (None, LlamaBatch),
    "llama_decode": (_I, _P, LlamaBatch),
    "llama_get_logits_ith": (_P, _P, _I),
    "llama_get_memory": (_P, _P),
    "llama_memory_clear": (None, _P, _B),
    "llama_memory_seq_rm": (_B, _P, _I, _I, _I),
    "ggml_init": (_P, _Arena),
    "ggml_free": (None, _P),
    "ggml_new_tensor_2d": (_P, _P, _I, _L, _L),
    "ggml_get_data": (_P, _P),
    "ggml_get_name": (_P, _P),
}
OPTIONAL = {"ggml_set_abort_callback": (_P, _P)}


class LlamaLibrary(NamedTuple):
    name: str  # with its version
    functions: Any
    context: ContextLayout
    gpu_layers: int  # the byte offset of 32 bits into llama_model_params
    tensor: TensorLayout

    @property
    def system_info(self) -> str:
        return str(self.functions.llama_print_system_info().decode()).strip(" |")


@cache
def library() -> LlamaLibrary:
    require("llamacpp", WHEEL)
    name = f"{WHEEL} {version(WHEEL)}"
    modules = [path for path in files(WHEEL) or () if path.suffix == ".so"]
    if len(modules) != 1:
        raise _unfit(name, f"{len(modules)} extension modules")
    return load(Path(str(modules[0].locate())), name)


@contextmanager
def _short_waits() -> Iterator[None]:
    """Set IDLE_TURNS while a library is loaded, when libgomp reads them, unless the user did."""
    missing = {} if any(name in os.environ for name in WAITING) else IDLE_TURNS
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            del os.environ[name]


def load(path: Path, name: str) -> LlamaLibrary:
    with _short_waits():
        functions = ctypes.CDLL(str(path))
    for function, (result, *arguments) in (SIGNATURES | OPTIONAL).items():
        if not hasattr(functions, function):
            if function in OPTIONAL:
                continue
            raise _unfit(name, f"no function {function}")
        pointer = getattr(functions, function)
        pointer.restype, pointer.argtypes = result, arguments
    try:
        context = ContextLayout.found_in(functions.llama_context_default_params())
        model = functions.llama_model_default_params().places(MODEL, "llama_model_params")
        tensor = _tensor_layout(functions)
        _check_batch(functions)
    except ValueError as error:
        raise _unfit(name, str(error)) from error
    with messages(functions):
        functions.llama_backend_init()
    return LlamaLibrary(name, functions, context, model["gpu_layers"], tensor)


def _unfit(name: str, reason: str) -> InvalidRequest:
    return InvalidRequest("llama.cpp", f"{name}: {reason}", "a build such as xllamacpp 2026.10")


def _tensor_layout(functions: Any) -> TensorLayout:
    """Find the fields of a ggml_tensor of 3 columns and 5 rows, allocated in zeros."""
    memory = np.zeros(ARENA_BYTES + ARENA_ALIGNED, np.uint8)
    start = memory.ctypes.data + -memory.ctypes.data % ARENA_ALIGNED
    arena = functions.ggml_init(_Arena(ARENA_BYTES, start, False))
    try:
        tensor = functions.ggml_new_tensor_2d(arena, FLOAT32, 3, 5)
        words = np.ctypeslib.as_array((ctypes.c_int64 * 48).from_address(tensor)).copy()
        name = functions.ggml_get_name(tensor) - tensor
        return TensorLayout.found_in(words, name, functions.ggml_get_data(tensor))
    finally:
        functions.ggml_free(arena)


def _check_batch(functions: Any) -> None:
    batch = functions.llama_batch_init(2, 0, 1)
    arrays = (batch.tokens, batch.positions, batch.sequence_counts, batch.sequences, batch.outputs)
    if batch.count != 0 or batch.embeddings or not all(arrays):
        raise ValueError("llama_batch has other fields than those known")
    functions.llama_batch_free(batch)


_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
MESSAGES_KEPT = 5
ERROR = 4  # ggml_log_level


@contextmanager
def messages(functions: Any) -> Iterator[list[str]]:
    lines: list[str] = []

    def keep(level: int, text: bytes, _: Any) -> None:
        line = text.decode(errors="replace").strip(". \n")
        if line and level == ERROR:
            lines.append(line)
            del lines[:-MESSAGES_KEPT]

    callback = _LOG(keep)
    before, argument = ctypes.c_void_p(), ctypes.c_void_p()
    functions.llama_log_get(ctypes.byref(before), ctypes.byref(argument))
    functions.llama_log_set(ctypes.cast(callback, ctypes.c_void_p), None)
    try:
        yield lines
    finally:
        functions.llama_log_set(before, argument)
