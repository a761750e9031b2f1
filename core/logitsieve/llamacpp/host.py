"""A host: an engine that runs a GGUF file's model on the CPU and can end its graph where told.

Models and contexts call its C functions by llama.cpp's names (SIGNATURES), and methods for what
engines do in ways of their own. Nothing else knows which engine it is.
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

# Turns of an idle OpenMP thread's waiting loop, some 60 microseconds. By default threads of
# llama.cpp wait for milliseconds after each token, on the cores of our output layer.
IDLE_TURNS = {"GOMP_SPINCOUNT": "5000"}
WAITING = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")  # the user's own
FLOAT32 = 0  # ggml's number
ARENA_BYTES, ARENA_ALIGNED = 1 << 16, 64


class ContextOptions(NamedTuple):
    positions: int  # of all sequences
    batch: int  # tokens of one decode at most
    graph: int  # tokens of it that are computed at once
    sequences: int
    threads: int
    separate: bool  # each sequence has an equal part of the positions
    hook: int  # the address of a callback for ggml's scheduler (`hook.py`), and of its state
    state: int


class TensorLayout(NamedTuple):
    """Words into a ggml_tensor."""

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


class Arena(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_size_t), ("memory", ctypes.c_void_p), ("bare", ctypes.c_bool))


PTR, INT, LONG = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
TEXT, BOOL, UINT = ctypes.c_char_p, ctypes.c_bool, ctypes.c_uint32
SIGNATURES: dict[str, tuple[Any, ...]] = {  # the result first
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
    """An engine whose library is open. `functions` has SIGNATURES under llama.cpp's names."""

    engine = "llamacpp"  # its name
    apart = False  # a context has one sequence
    functions: Any
    tensor: TensorLayout

    def __init__(self, name: str) -> None:
        self.name = name  # with its version

    @property
    def system_info(self) -> str:
        return str(self.functions.llama_print_system_info().decode()).strip(" |")

    def refusal(self, gguf: GgufModel) -> str:
        """Return what of a file the engine does not know; "" where it may try."""
        return ""

    def most_at_once(self, gguf: GgufModel, batch: int) -> int:
        """Return how many tokens of a batch it computes rightly at once."""
        return batch

    @abstractmethod
    def load(self, path: Path) -> int | None:
        """Load a model onto the CPU; None where the engine refuses the file."""

    @abstractmethod
    def open(self, model: int, options: ContextOptions) -> int | None:
        """Open a context; None where the engine refuses the model."""

    @abstractmethod
    def batch(self, tokens: int) -> Any:
        """Allocate a llama_batch of one sequence a token; `llama_batch_free` frees it."""

    @abstractmethod
    def attributes(self, model: int, token: int) -> int:
        """Return the llama_token_attr of a token."""

    @abstractmethod
    def remove(self, context: int, sequence: int, start: int = -1) -> bool:
        """Remove a sequence's cached tokens from a position on, or all; False if it cannot."""

    @abstractmethod
    def messages(self) -> AbstractContextManager[list[str]]:
        """Keep the engine's last errors, and let it print nothing meanwhile."""

    @abstractmethod
    def without_abort(self, work: Callable[[], T]) -> T:
        """Return `work()`, a call of the engine; Aborted where it would end the process."""


def bind(functions: Any, signatures: Mapping[str, tuple[Any, ...]], name: str) -> None:
    """Declare a library's functions; InvalidRequest names one that it lacks."""
    for function, (result, *arguments) in signatures.items():
        if not hasattr(functions, function):
            raise unfit(name, f"no function {function}")
        pointer = getattr(functions, function)
        pointer.restype, pointer.argtypes = result, arguments


def unfit(name: str, reason: str) -> InvalidRequest:
    return InvalidRequest("engine", f"{name}: {reason}", "a build whose layout is known")


@contextmanager
def short_waits() -> Iterator[None]:
    """Set IDLE_TURNS while a library is loaded, when libgomp reads them, unless the user did."""
    missing = {} if any(name in os.environ for name in WAITING) else IDLE_TURNS
    os.environ.update(missing)
    try:
        yield
    finally:
        for name in missing:
            del os.environ[name]


def tensor_layout(functions: Any) -> TensorLayout:
    """Find the fields of a ggml_tensor of 3 columns and 5 rows, allocated in zeros."""
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
    """Return a ggml_log_callback that keeps the last errors."""

    def keep(level: int, text: bytes, _: Any) -> None:
        line = text.decode(errors="replace").strip(". \n")
        if line and level == ERROR:
            lines.append(line)
            del lines[:-MESSAGES_KEPT]

    return LOG(keep)
