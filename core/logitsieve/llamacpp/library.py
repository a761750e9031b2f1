"""llama.cpp's C API in the wheel of `xllamacpp`, called by ctypes.

The wheel's extension module exports the functions of llama.h and ggml.h. Their structures change
between builds and no function tells their layout, so `parameters.py` finds it by default values;
other builds are refused.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import files, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.llamacpp.parameters import ContextLayout, LlamaParameters, ModelLayout, TensorLayout
from logitsieve.utils.environment import require

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
    _fields_ = (("bytes", ctypes.c_size_t), ("room", ctypes.c_void_p), ("bare", ctypes.c_bool))


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


class LlamaLibrary(NamedTuple):
    """The functions, and the layouts of their structures."""

    name: str  # with its version
    functions: Any
    context: ContextLayout
    model: ModelLayout
    tensor: TensorLayout

    @property
    def system_info(self) -> str:
        """Return the CPU instructions that llama.cpp reports to use."""
        return str(self.functions.llama_print_system_info().decode()).strip(" |")


@cache
def library() -> LlamaLibrary:
    """Load the wheel's llama.cpp once; InvalidRequest for an unknown build, or MissingExtra."""
    require("llamacpp", WHEEL)
    name = f"{WHEEL} {version(WHEEL)}"
    modules = [path for path in files(WHEEL) or () if path.suffix == ".so"]
    if len(modules) != 1:
        raise _unfit(name, f"{len(modules)} extension modules")
    return load(Path(str(modules[0].locate())), name)


def load(path: Path, name: str) -> LlamaLibrary:
    """Load llama.cpp from the shared library `path`, called `name` in errors."""
    functions = ctypes.CDLL(str(path))
    for function, (result, *arguments) in SIGNATURES.items():
        if not hasattr(functions, function):
            raise _unfit(name, f"no function {function}")
        pointer = getattr(functions, function)
        pointer.restype, pointer.argtypes = result, arguments
    try:
        context = ContextLayout.found_in(functions.llama_context_default_params())
        model = ModelLayout.found_in(functions.llama_model_default_params())
        tensor = _tensor_layout(functions)
        _check_batch(functions)
    except ValueError as error:
        raise _unfit(name, str(error)) from error
    with messages(functions):
        functions.llama_backend_init()
    return LlamaLibrary(name, functions, context, model, tensor)


def _unfit(name: str, reason: str) -> InvalidRequest:
    return InvalidRequest("llama.cpp", f"{name}: {reason}", "a build such as xllamacpp 2026.10")


def _tensor_layout(functions: Any) -> TensorLayout:
    """Find the fields of a ggml_tensor of 3 columns and 5 rows.

    It is allocated in zeros: leftovers in a heap may look like a field.
    """
    room = np.zeros(ARENA_BYTES + ARENA_ALIGNED, np.uint8)
    start = room.ctypes.data + -room.ctypes.data % ARENA_ALIGNED
    arena = functions.ggml_init(_Arena(ARENA_BYTES, start, False))
    try:
        tensor = functions.ggml_new_tensor_2d(arena, FLOAT32, 3, 5)
        words = np.ctypeslib.as_array((ctypes.c_int64 * 48).from_address(tensor)).copy()
        name = functions.ggml_get_name(tensor) - tensor
        return TensorLayout.found_in(words, name, functions.ggml_get_data(tensor))
    finally:
        functions.ggml_free(arena)


def _check_batch(functions: Any) -> None:
    """ValueError unless a fresh batch has the arrays of `LlamaBatch`."""
    batch = functions.llama_batch_init(2, 0, 1)
    arrays = (batch.tokens, batch.positions, batch.sequence_counts, batch.sequences, batch.outputs)
    if batch.count != 0 or batch.embeddings or not all(arrays):
        raise ValueError("llama_batch has other fields than those known")
    functions.llama_batch_free(batch)


_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
KEPT = 5  # messages


@contextmanager
def messages(functions: Any) -> Iterator[list[str]]:
    """Collect the last lines that llama.cpp logs inside `with`, and print none."""
    lines: list[str] = []

    def keep(level: int, text: bytes, _: Any) -> None:
        if line := text.decode(errors="replace").strip(". \n"):
            lines.append(line)
            del lines[:-KEPT]

    callback = _LOG(keep)
    before, argument = ctypes.c_void_p(), ctypes.c_void_p()
    functions.llama_log_get(ctypes.byref(before), ctypes.byref(argument))
    functions.llama_log_set(ctypes.cast(callback, ctypes.c_void_p), None)
    try:
        yield lines
    finally:
        functions.llama_log_set(before, argument)
