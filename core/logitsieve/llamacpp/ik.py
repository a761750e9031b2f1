"""The engine ik_llama.cpp, in the wheel `ik-llama-cpp-python`, whose package describes its structs.

It loses cached tokens behind a hole, which several sequences would make, so each sequence has a
context of its own. It has no callback before abort(), so SIGABRT is handled while a model opens.
"""

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from logitsieve.api.errors import InvalidRequest
from logitsieve.llamacpp.aborts import without_sigabrt
from logitsieve.llamacpp.host import (
    BOOL,
    INT,
    PTR,
    SIGNATURES,
    TEXT,
    ContextOptions,
    Host,
    bind,
    keeper,
    short_waits,
    tensor_layout,
    unfit,
)
from logitsieve.llamacpp.model_file import GgufModel
from logitsieve.utils.environment import require

T = TypeVar("T")

BEYOND = (3, 14)  # there are no wheels from this Python on
WHEEL, PACKAGE = "ik-llama-cpp-python", "ik_llama_cpp"
RENAMED = {  # llama.cpp's names -> ik_llama.cpp's
    "llama_model_free": "llama_free_model",
    "llama_model_n_ctx_train": "llama_n_ctx_train",
    "llama_tokenize": "llama_vocab_tokenize",
    "llama_token_to_piece": "llama_token_to_piece_vocab",
}
# Defaults of fields at both ends of each structure. If they differ, the package describes another
# build than the library.
MODEL = {"n_ubatch": 512, "n_v_last": -1, "use_mmap": True, "dry_run": False, "flash_attn": True}
CONTEXT = {
    "n_ctx": 512,
    "n_batch": 2048,
    "n_threads": 4,
    "yarn_beta_slow": -1.0,
    "defrag_thold": -1.0,
    "type_k": 1,
    "n_v_last": -1,
    "flash_attn": True,
    "mla_attn": 3,
    "graph_reuse": True,
    "min_experts": -1,
    "mtp": False,
    "mtp_op_type": 0,
}


# Tests compare the logits of these architectures with llama.cpp's; some others crash.
ARCHITECTURES = (
    *("deci", "ernie4_5", "gemma3", "internlm2", "llama", "mistral3", "qwen2", "qwen3", "smollm3"),
)
FULL_ATTENTION = {"gemma3": 6}  # number of the first layer with it; fewer layers crash
UNKNOWN = ("TQ1_0", "TQ2_0", "NVFP4", "Q1_0")  # types that it lacks or numbers differently
# It multiplies 32 or more rows by these wrongly, unless a row has a multiple of four blocks.
BY_FOURS, FOUR_BLOCKS, RIGHT = ("Q4_1", "Q5_1"), 128, 31


class IkLlamaCpp(Host):
    engine, apart = "ik", True

    def __init__(self, name: str, structures: Any) -> None:
        super().__init__(name)
        with short_waits():
            self._own = own = ctypes.CDLL(structures._lib._name)
        model, context, batch = (
            getattr(structures, f"llama_{one}")
            for one in ("model_params", "context_params", "batch")
        )
        named = {RENAMED.get(function, function): form for function, form in SIGNATURES.items()}
        mine: dict[str, tuple[Any, ...]] = {  # result, then arguments
            "llama_model_default_params": (model,),
            "llama_context_default_params": (context,),
            "llama_model_load_from_file": (PTR, TEXT, model),
            "llama_init_from_model": (PTR, PTR, context),
            "llama_batch_init": (batch, INT, INT, INT),
            "llama_batch_free": (None, batch),
            "llama_decode": (INT, PTR, batch),
            "llama_token_get_attr": (INT, PTR, INT),
            "llama_kv_cache_seq_rm": (BOOL, PTR, INT, INT, INT),
        }
        bind(own, named | mine, name)
        self.functions = _Renamed(own)
        for made, wanted in (
            (own.llama_model_default_params(), MODEL),
            (own.llama_context_default_params(), CONTEXT),
        ):
            for field, value in wanted.items():
                if (got := getattr(made, field)) != value:
                    raise unfit(name, f"{type(made).__name__}.{field} is {got} by default")
        try:
            self.tensor = tensor_layout(own)
        except ValueError as error:
            raise unfit(name, str(error)) from error
        with self.messages():
            own.llama_backend_init()

    def refusal(self, gguf: GgufModel) -> str:
        if gguf.architecture not in ARCHITECTURES:
            return f"the architecture {gguf.architecture}, none of {', '.join(ARCHITECTURES)}"
        layers = FULL_ATTENTION.get(gguf.architecture, 0)
        if gguf.layers < layers:
            return f"a {gguf.architecture} of {gguf.layers} layers, fewer than {layers}"
        found = {kind for kind, _ in gguf.tensor_types} & {*UNKNOWN}
        return f"tensors of the type {min(found)}" if found else ""

    def most_at_once(self, gguf: GgufModel, batch: int) -> int:
        rows = [columns for kind, columns in gguf.tensor_types if kind in BY_FOURS]
        return min(batch, RIGHT) if any(columns % FOUR_BLOCKS for columns in rows) else batch

    def load(self, path: Path) -> int | None:
        parameters = self._own.llama_model_default_params()
        parameters.n_gpu_layers = 0
        parameters.use_mmap, parameters.repack_tensors = False, True  # interleaved rows are faster
        model: int | None = self._own.llama_model_load_from_file(str(path).encode(), parameters)
        return model

    def open(self, model: int, options: ContextOptions) -> int | None:
        parameters = self._own.llama_context_default_params()
        parameters.n_ctx, parameters.n_seq_max = options.positions, options.sequences
        parameters.n_batch, parameters.n_ubatch = options.batch, options.graph
        parameters.n_threads = parameters.n_threads_batch = options.threads
        parameters.offload_kqv = False
        hook = type(parameters.cb_eval)
        parameters.cb_eval = ctypes.cast(ctypes.c_void_p(options.hook), hook)
        parameters.cb_eval_user_data = options.state
        context: int | None = self._own.llama_init_from_model(model, parameters)
        return context

    def batch(self, tokens: int) -> Any:
        return self._own.llama_batch_init(tokens, 0, 1)

    def attributes(self, model: int, token: int) -> int:
        return int(self._own.llama_token_get_attr(model, token))

    def remove(self, context: int, sequence: int, start: int = -1) -> bool:
        return bool(self._own.llama_kv_cache_seq_rm(context, sequence, start, -1))

    @contextmanager
    def messages(self) -> Iterator[list[str]]:
        lines: list[str] = []
        callback = keeper(lines)
        self._own.llama_log_set(ctypes.cast(callback, ctypes.c_void_p), None)
        try:
            yield lines
        finally:
            self._own.llama_log_set(None, None)

    def without_abort(self, work: Callable[[], T]) -> T:
        return without_sigabrt(work)


class _Renamed:
    def __init__(self, functions: Any) -> None:
        self._functions = functions

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._functions, RENAMED.get(name, name))
        setattr(self, name, function)
        return function


def is_installed() -> bool:
    return find_spec(PACKAGE) is not None


@cache
def ik_llama_cpp() -> IkLlamaCpp:
    if not is_installed() and sys.version_info[:2] >= BEYOND:
        got = f"ik on Python {sys.version_info.major}.{sys.version_info.minor}"
        raise InvalidRequest("engine", got, f"{WHEEL} has wheels up to Python 3.13")
    require("ik", PACKAGE)
    with short_waits():
        from ik_llama_cpp import _ctypes_api
    return IkLlamaCpp(f"{WHEEL} {version(WHEEL)}", _ctypes_api)
