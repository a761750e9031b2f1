"""The interface of engines, which run the model of a GGUF file on the CPU.

Models and contexts call an engine's C functions by llama.cpp's names (SIGNATURES), and methods of
`Host` for whatever differs between engines.
"""

import ctypes
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.llamacpp.model_file import GgufModel

T = TypeVar("T")

# Makes an idle OpenMP thread spin for some 60 microseconds. By default llama.cpp's threads spin for
# milliseconds after each token, on cores that our output layer needs.
IDLE_TURNS = {"GOMP_SPINCOUNT": "5000"}
WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")  # if the user set one, it stays
FLOAT32 = 0  # ggml_type
ARENA_BYTES, ARENA_ALIGNED = 1 << 16, 64


class ContextOptions(NamedTuple):
    positions: int  # of all sequences together
    batch: int  # most tokens of one decode
    graph: int  # most tokens that are computed at once
    sequences: int
    threads: int
    separate: bool  # each sequence has an equal part of the positions
    hook: int  # address of the callback in `hook.py`
    state: int  # address of its state


class TensorLayout(NamedTuple):
    """Offsets of fields in a ggml_tensor, in words of 8 bytes."""

    columns: int  # ne[0]; ne[1] to ne[3] and nb[0] to nb[3] follow
    data: int
    name: int

    @classmethod
    def found_in(cls, words: Any, name: int, data: int) -> Self:
        wanted = np.array([3, 5, 1, 1, 4, 12, 60, 60])
        places = [i for i in range(len(words) - 7) if (words[i : i + 8] == wanted).all()]
        pointers = np.flatnonzero(words == data)
        if len(places) != 1 or len(pointers) != 1 or name % 8 or not 0 < name < 8 * len(words):
            raise ValueError("ggml_tensor of an unknown layout")
        return cls(places[0], int(pointers[0]), name // 8)


class Arena(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_size_t), ("memory", ctypes.c_void_p), ("bare", ctypes.c_bool))


PTR, INT, LONG = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
TEXT, BOOL, UINT = ctypes.c_char_p, ctypes.c_bool, ctypes.c_uint32
SIGNATURES: dict[str, tuple[Any, ...]] = {  # result, then arguments
    "llama_backend_init": (None,),
    "llama_print_system_info": (TEXT,),
    "llama_log_set": (None, PTR, PTR),
    "llama_model_free": (None, PTR),
    "llama_model_get_vocab": (PTR, PTR),
    "llama_model_has_encoder": (BOOL, PTR),
    "llama_model_is_recurrent": (BOOL, PTR),
    "llama_model_is_hybrid": (BOOL, PTR),
    "llama_model_n_ctx_train": (INT, PTR),
    "llama_vocab_n_tokens": (INT, PTR),
    "llama_vocab_type": (INT, PTR),
    "llama_vocab_bos": (INT, PTR),
    "llama_vocab_get_add_bos": (BOOL, PTR),
    "llama_vocab_is_eog": (BOOL, PTR, INT),
    "llama_tokenize": (INT, PTR, TEXT, INT, PTR, INT, BOOL, BOOL),
    "llama_token_to_piece": (INT, PTR, INT, PTR, INT, INT, BOOL),
    "llama_free": (None, PTR),
    "llama_n_ctx": (UINT, PTR),
    "llama_set_n_threads": (None, PTR, INT, INT),
    "llama_pooling_type": (INT, PTR),
    "llama_get_logits_ith": (PTR, PTR, INT),
    "ggml_init": (PTR, Arena),
    "ggml_free": (None, PTR),
    "ggml_new_tensor_2d": (PTR, PTR, INT, LONG, LONG),
    "ggml_get_data": (PTR, PTR),
    "ggml_get_name": (PTR, PTR),
}


class Host(ABC):
    """An engine with an open library."""

    engine = "llamacpp"
    apart = False  # True if each sequence needs a context of its own
    functions: Any  # the C functions of SIGNATURES
    tensor: TensorLayout

    def __init__(self, name: str) -> None:
        self.name = name  # with the version

    @property
    def system_info(self) -> str:
        return str(self.functions.llama_print_system_info().decode()).strip(" |")

    def refusal(self, gguf: GgufModel) -> str:
        """Say what the engine does not support in a file; "" if it may try."""
        return ""

    def most_at_once(self, gguf: GgufModel, batch: int) -> int:
        """Return how many tokens of a batch the engine computes correctly at once."""
        return batch

    @abstractmethod
    def load(self, path: Path) -> int | None:
        """Load a model onto the CPU; None if the engine refuses the file."""

    @abstractmethod
    def open(self, model: int, options: ContextOptions) -> int | None:
        """Open a context; None if the engine refuses the model."""

    @abstractmethod
    def batch(self, tokens: int) -> Any:
        """Allocate a llama_batch with one sequence per token, for `llama_batch_free` to free."""

    @abstractmethod
    def attributes(self, model: int, token: int) -> int:
        """Return the llama_token_attr of a token."""

    @abstractmethod
    def remove(self, context: int, sequence: int, start: int = -1) -> bool:
        """Remove a sequence's cached tokens from `start` on, by default all; False on failure."""

    @abstractmethod
    def messages(self) -> AbstractContextManager[list[str]]:
        """Collect the engine's last errors, and silence it meanwhile."""

    @abstractmethod
    def without_abort(self, work: Callable[[], T]) -> T:
        """Return `work()`, which calls the engine; Aborted where it would end the process."""


def bind(functions: Any, signatures: Mapping[str, tuple[Any, ...]], name: str) -> None:
    for function, (result, *arguments) in signatures.items():
        if not hasattr(functions, function):
            raise unfit(name, f"no function {function}")
        pointer = getattr(functions, function)
        pointer.restype, pointer.argtypes = result, arguments


def unfit(name: str, reason: str) -> InvalidRequest:
    return InvalidRequest("engine", f"{name}: {reason}", "a build whose layout is known")


@contextmanager
def short_waits() -> Iterator[None]:
    """Set IDLE_TURNS while a library loads, which is when libgomp reads them."""
    missing = {} if any(name in os.environ for name in WAITING) else IDLE_TURNS
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            del os.environ[name]


def tensor_layout(functions: Any) -> TensorLayout:
    """Find the layout by a tensor that ggml makes in zeroed memory."""
    memory = np.zeros(ARENA_BYTES + ARENA_ALIGNED, np.uint8)
    start = memory.ctypes.data + -memory.ctypes.data % ARENA_ALIGNED
    arena = functions.ggml_init(Arena(ARENA_BYTES, start, False))
    try:
        tensor = functions.ggml_new_tensor_2d(arena, FLOAT32, 3, 5)
        words = np.ctypeslib.as_array((ctypes.c_int64 * 48).from_address(tensor)).copy()
        name = functions.ggml_get_name(tensor) - tensor
        return TensorLayout.found_in(words, name, functions.ggml_get_data(tensor))
    finally:
        functions.ggml_free(arena)


LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
MESSAGES_KEPT = 5
ERROR = 4  # ggml_log_level


def keeper(lines: list[str]) -> Any:
    def keep(level: int, text: bytes, _: Any) -> None:
        line = text.decode(errors="replace").strip(". \n")
        if line and level == ERROR:
            lines.append(line)
            del lines[:-MESSAGES_KEPT]

    return LOG(keep)
