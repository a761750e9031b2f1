"""The engine llama.cpp: its C API in the wheel of `xllamacpp`, called by ctypes.

Its structures change between builds, and no function tells their layout. llama_context_params and
llama_model_params often gain fields, but rarely lose or move one. So we translate a build's
defaults into one letter per 32-bit word, find the fields by a pattern, and refuse a build that does
not match. The structures are passed by value, in a buffer that is longer than they are.
"""

import ctypes
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import files, version
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

from logitsieve.llamacpp.aborts import without_abort
from logitsieve.llamacpp.host import (
    BOOL,
    INT,
    PTR,
    SIGNATURES,
    TEXT,
    UINT,
    ContextOptions,
    Host,
    bind,
    keeper,
    short_waits,
    tensor_layout,
    unfit,
)
from logitsieve.utils.environment import require

T = TypeVar("T")

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
        """Return the byte offsets of a pattern's groups; ValueError if it does not match."""
        raw = bytes(self.bytes)
        words = (raw[start : start + 4] for start in range(0, PARAMETER_BYTES, 4))
        match = pattern.match(letters := "".join(LETTERS.get(word, "?") for word in words))
        if match is None:
            raise ValueError(f"{name} of an unknown layout ({letters[:40]})")
        return {field: 4 * match.start(field) for field in match.groupdict()}


# In order: n_ctx, n_batch, n_ubatch, n_seq_max, some counts, both numbers of threads, enumerations,
# rope's two and yarn's four factors, yarn_orig_ctx, defrag_thold, cb_eval and its argument, the
# types of K and V (float16), pointers, and the flags from `embeddings` on.
_CONTEXT = re.compile(
    r"(?P<sizes>cbc1)[01]{0,4}(?P<threads>44)0?m{2,3}(?P<flash>m)00f[fg][fgh][fg]0f0?"
    r"(?P<hook>0000)11(?:00){2,4}(?P<flags>B)"
)
# In order: pointers, n_gpu_layers, split_mode (by layers), main_gpu.
MODEL = re.compile(r"0000(?P<gpu_layers>m)1")


class ContextLayout(NamedTuple):
    sizes: int  # n_ctx, n_batch, n_ubatch and n_seq_max, 32 bits each
    threads: int  # n_threads and n_threads_batch
    flash: int  # flash_attn_type, 32 bits; 0 is off
    hook: int  # cb_eval and its argument, 64 bits each
    flags: int  # embeddings, offload_kqv, no_perf, op_offload, swa_full, kv_unified, a byte each

    @classmethod
    def found_in(cls, defaults: LlamaParameters) -> Self:
        layout = cls(**defaults.places(_CONTEXT, "llama_context_params"))
        if layout.hook % 8:
            raise ValueError(f"llama_context_params with cb_eval at {layout.hook}")
        return layout


WHEEL = "xllamacpp"


class LlamaBatch(ctypes.Structure):
    """llama_batch; `_check_batch` confirms these fields."""

    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.c_void_p),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    )


OWN: dict[str, tuple[Any, ...]] = {  # result, then arguments
    "llama_log_get": (None, PTR, PTR),
    "llama_model_default_params": (LlamaParameters,),
    "llama_context_default_params": (LlamaParameters,),
    "llama_model_load_from_file": (PTR, TEXT, LlamaParameters),
    "llama_init_from_model": (PTR, PTR, LlamaParameters),
    "llama_batch_init": (LlamaBatch, INT, INT, INT),
    "llama_batch_free": (None, LlamaBatch),
    "llama_decode": (INT, PTR, LlamaBatch),
    "llama_vocab_get_attr": (UINT, PTR, INT),
    "llama_get_memory": (PTR, PTR),
    "llama_memory_seq_rm": (BOOL, PTR, INT, INT, INT),
}


class XLlamaCpp(Host):
    """llama.cpp in the library `path`: the wheel's, or another build."""

    def __init__(self, path: Path, name: str) -> None:
        super().__init__(name)
        with short_waits():
            self.functions = functions = ctypes.CDLL(str(path))
        bind(functions, SIGNATURES | OWN, name)
        if hasattr(functions, "ggml_set_abort_callback"):
            bind(functions, {"ggml_set_abort_callback": (PTR, PTR)}, name)
        try:
            self.context = ContextLayout.found_in(functions.llama_context_default_params())
            model = functions.llama_model_default_params().places(MODEL, "llama_model_params")
            self.gpu_layers = model["gpu_layers"]  # byte offset
            self.tensor = tensor_layout(functions)
            _check_batch(functions)
        except ValueError as error:
            raise unfit(name, str(error)) from error
        with self.messages():
            functions.llama_backend_init()

    def load(self, path: Path) -> int | None:
        parameters = self.functions.llama_model_default_params()
        parameters.set("<i", self.gpu_layers, 0)
        model: int | None = self.functions.llama_model_load_from_file(
            str(path).encode(), parameters
        )
        return model

    def open(self, model: int, options: ContextOptions) -> int | None:
        layout, parameters = self.context, self.functions.llama_context_default_params()
        sizes = options.positions, options.batch, options.graph, options.sequences
        for place, size in enumerate(sizes):
            parameters.set("<i", layout.sizes + 4 * place, size)
        for place in range(2):
            parameters.set("<i", layout.threads + 4 * place, options.threads)
        parameters.set("<Q", layout.hook, options.hook)
        parameters.set("<Q", layout.hook + 8, options.state)
        if options.separate and options.threads > 1:
            # With flash attention, threads would divide the attention of a single row in a long
            # cache, which changes its bits.
            parameters.set("<i", layout.flash, 0)
        for place, chosen in ((1, 0), (3, 0), (5, not options.separate)):  # all on the CPU
            parameters.set("<B", layout.flags + place, chosen)
        context: int | None = self.functions.llama_init_from_model(model, parameters)
        return context

    def batch(self, tokens: int) -> LlamaBatch:
        made: LlamaBatch = self.functions.llama_batch_init(tokens, 0, 1)
        return made

    def attributes(self, model: int, token: int) -> int:
        vocabulary = self.functions.llama_model_get_vocab(model)
        return int(self.functions.llama_vocab_get_attr(vocabulary, token))

    def remove(self, context: int, sequence: int, start: int = -1) -> bool:
        memory = self.functions.llama_get_memory(context)
        return bool(self.functions.llama_memory_seq_rm(memory, sequence, start, -1))

    @contextmanager
    def messages(self) -> Iterator[list[str]]:
        lines: list[str] = []
        callback = keeper(lines)
        before, argument = ctypes.c_void_p(), ctypes.c_void_p()
        self.functions.llama_log_get(ctypes.byref(before), ctypes.byref(argument))
        self.functions.llama_log_set(ctypes.cast(callback, ctypes.c_void_p), None)
        try:
            yield lines
        finally:
            self.functions.llama_log_set(before, argument)

    def without_abort(self, work: Callable[[], T]) -> T:
        return without_abort(self.functions, work)


@cache
def xllamacpp() -> XLlamaCpp:
    require("llamacpp", WHEEL)
    name = f"{WHEEL} {version(WHEEL)}"
    modules = [path for path in files(WHEEL) or () if path.suffix == ".so"]
    if len(modules) != 1:
        raise unfit(name, f"{len(modules)} extension modules")
    return XLlamaCpp(Path(str(modules[0].locate())), name)


def _check_batch(functions: Any) -> None:
    batch = functions.llama_batch_init(2, 0, 1)
    arrays = (batch.token, batch.pos, batch.n_seq_id, batch.seq_id, batch.logits)
    if batch.n_tokens != 0 or batch.embd or not all(arrays):
        raise ValueError("llama_batch has other fields than those known")
    functions.llama_batch_free(batch)
