"""llama.cpp's quantised rows: ggml's matrix product as llama.cpp computes an output layer on a CPU.

Q8_0 (32 codes of 8 bits and a float16 scale: 34 bytes), Q4_0 (18 bytes), and Q6_K, which llama.cpp
gives to an output layer whose width is a multiple of 256. Activations become Q8_0, or Q8_K beside
Q6_K. ggml is called in the library that the PyPI package `xllamacpp` is linked with; weights lie in
the buffer that llama.cpp would choose, which repacks Q4_0 for the CPU's vectors. The bias is added
in float32, as llama.cpp does for the models that have one.
Shape letters: B batch rows, V vocabulary, D hidden size padded to whole blocks.
"""

import ctypes
from collections.abc import Sequence
from functools import cache
from importlib.metadata import files
from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks.llamacpp.builds import native_backend
from benchmarks.race.methods import Knobs, Method, best_ids
from benchmarks.race.points import QUANTISED
from demo.published import CACHE
from logitsieve.api.results import Float32
from logitsieve.heads import Softmax
from logitsieve.llamacpp import OutputMatrix
from logitsieve.llamacpp.xllamacpp import xllamacpp

BLOCK = 32  # columns of a block where there are not 256
FORMATS = {"Q8_0": (8, BLOCK), "Q6_K": (14, 256), "Q4_0": (2, BLOCK)}  # number, columns of a block
FLOAT32 = 0
CONTEXT_BYTES = 1 << 20  # of descriptions of tensors and graphs, not of their data


class _Context(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_size_t), ("room", ctypes.c_void_p), ("bare", ctypes.c_bool))


_P, _I, _L, _S = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_size_t
SIGNATURES: dict[str, tuple[Any, ...]] = {  # of ggml's headers: the result first
    "ggml_log_set": (None, _P, _P),
    "ggml_init": (_P, _Context),
    "ggml_new_tensor_1d": (_P, _P, _I, _L),
    "ggml_new_tensor_2d": (_P, _P, _I, _L, _L),
    "ggml_mul_mat": (_P, _P, _P, _P),
    "ggml_add": (_P, _P, _P, _P),
    "ggml_new_graph": (_P, _P),
    "ggml_build_forward_expand": (None, _P, _P),
    "ggml_get_data": (_P, _P),
    "ggml_row_size": (_S, _I, _L),
    "ggml_quantize_chunk": (_S, _I, _P, _P, _L, _L, _L, _P),
    "ggml_backend_cpu_init": (_P,),
    "ggml_backend_cpu_set_n_threads": (None, _P, _I),
    "ggml_backend_get_device": (_P, _P),
    "ggml_backend_dev_backend_reg": (_P, _P),
    "ggml_backend_dev_supports_op": (ctypes.c_bool, _P, _P),
    "ggml_backend_reg_get_proc_address": (_P, _P, ctypes.c_char_p),
    "ggml_backend_get_default_buffer_type": (_P, _P),
    "ggml_backend_alloc_ctx_tensors": (_P, _P, _P),
    "ggml_backend_alloc_ctx_tensors_from_buft": (_P, _P, _P),
    "ggml_backend_buffer_free": (None, _P),
    "ggml_backend_tensor_set": (None, _P, _P, _S, _S),
    "ggml_backend_graph_compute": (_I, _P, _P),
}
_SILENT = ctypes.CFUNCTYPE(None, _I, ctypes.c_char_p, _P)(lambda *_: None)


@cache
def library(native: bool = False) -> ctypes.CDLL:
    """ggml as it is linked into xllamacpp's extension module, or npm's backend for this CPU."""
    (module,) = (path for path in files("xllamacpp") or () if path.suffix == ".so")
    ggml = ctypes.CDLL(str(native_backend(CACHE) if native else module.locate()))
    for name, (result, *arguments) in SIGNATURES.items():
        function = getattr(ggml, name)
        function.restype, function.argtypes = result, arguments
    ggml.ggml_log_set(ctypes.cast(_SILENT, _P), None)
    return ggml


def system_info() -> str:
    """The instructions that ggml uses, as llama.cpp prints them; empty without the wheel."""
    return xllamacpp().system_info if find_spec("xllamacpp") else ""


class LlamaCpp(Method):
    """W in one of `FORMATS`, or in the blocks of a file; ggml's memory is kept until the end."""

    kind = QUANTISED

    def __init__(
        self, softmax: Softmax, form: str, matrix: OutputMatrix | None = None, native: bool = False
    ) -> None:
        self.name = f"llama.cpp {form}" + ", native" * native
        self._ggml = ggml = library(native)
        self._type, block = FORMATS[form]
        self._words, self._dim = softmax.vocab_size, softmax.dim
        self._width = -(-softmax.dim // block) * block
        self._backend = ggml.ggml_backend_cpu_init()
        self._bias = np.ascontiguousarray(softmax.bias)
        self.nbytes = self._words * ggml.ggml_row_size(self._type, self._width)
        codes = self._quantised(softmax) if matrix is None else matrix.blocks
        self._weight = self._placed()
        ggml.ggml_backend_tensor_set(self._weight, codes.ctypes.data, 0, self.nbytes)
        self._graphs: dict[int, tuple[Any, Float32, Float32]] = {}

    def _quantised(self, softmax: Softmax) -> np.ndarray:
        rows = np.pad(softmax.weight, ((0, 0), (0, self._width - self._dim)))
        codes = np.empty(self.nbytes, np.uint8)
        shape = (0, self._words, self._width, None)
        self._ggml.ggml_quantize_chunk(self._type, rows.ctypes.data, codes.ctypes.data, *shape)
        return codes

    def _placed(self) -> Any:
        """W's tensor in the first kind of buffer whose product with float32 rows ggml has."""
        ggml = self._ggml
        device = ggml.ggml_backend_get_device(self._backend)
        for kind in (*self._extra_kinds(device), None):
            held = self._context()
            weight = ggml.ggml_new_tensor_2d(held, self._type, self._width, self._words)
            kind = kind or ggml.ggml_backend_get_default_buffer_type(self._backend)
            buffer = ggml.ggml_backend_alloc_ctx_tensors_from_buft(held, kind)
            tried = self._context()
            row = ggml.ggml_new_tensor_2d(tried, FLOAT32, self._width, 1)
            product = ggml.ggml_mul_mat(tried, weight, row)
            if ggml.ggml_backend_dev_supports_op(device, product):
                return weight
            ggml.ggml_backend_buffer_free(buffer)
        raise RuntimeError(f"ggml multiplies no {self.name} on this CPU")

    def _extra_kinds(self, device: Any) -> Sequence[Any]:
        """Kinds of buffers that store weights in another order."""
        registry = self._ggml.ggml_backend_dev_backend_reg(device)
        name = b"ggml_backend_dev_get_extra_bufts"
        address = self._ggml.ggml_backend_reg_get_proc_address(registry, name)
        kinds: list[Any] = []
        if address:
            listed = ctypes.CFUNCTYPE(ctypes.POINTER(_P), _P)(address)(device)
            while listed and listed[len(kinds)]:
                kinds.append(listed[len(kinds)])
        return kinds

    def _context(self) -> Any:
        return self._ggml.ggml_init(_Context(CONTEXT_BYTES, None, True))

    def _graph(self, rows: int) -> tuple[Any, Float32, Float32]:
        """A graph, its queries [B, D] and its logits [B, V], for so many rows."""
        ggml, context = self._ggml, self._context()
        queries = ggml.ggml_new_tensor_2d(context, FLOAT32, self._width, rows)
        bias = ggml.ggml_new_tensor_1d(context, FLOAT32, self._words)
        product = ggml.ggml_mul_mat(context, self._weight, queries)
        logits = ggml.ggml_add(context, product, bias)
        graph = ggml.ggml_new_graph(context)
        ggml.ggml_build_forward_expand(graph, logits)
        ggml.ggml_backend_alloc_ctx_tensors(context, self._backend)
        self._view(bias, 1, self._words)[:] = self._bias
        queries_BD = self._view(queries, rows, self._width)
        queries_BD[:] = 0
        return graph, queries_BD, self._view(logits, rows, self._words)

    def _view(self, tensor: Any, rows: int, columns: int) -> Float32:
        address = self._ggml.ggml_get_data(tensor)
        return np.ctypeslib.as_array((ctypes.c_float * columns * rows).from_address(address))

    def set_knobs(self, threads: int, knobs: Knobs) -> None:
        super().set_knobs(threads, knobs)
        self._ggml.ggml_backend_cpu_set_n_threads(self._backend, threads)

    def topk(self, hidden_states: Float32, k: int) -> np.ndarray:
        if len(hidden_states) not in self._graphs:
            self._graphs[len(hidden_states)] = self._graph(len(hidden_states))
        graph, queries_BD, logits_BV = self._graphs[len(hidden_states)]
        queries_BD[:, : self._dim] = hidden_states
        self._ggml.ggml_backend_graph_compute(self._backend, graph)
        return best_ids(logits_BV, k)
