"""ONNX Runtime's quantised matrix products, of a graph that ends in TopK.

"int8": DynamicQuantizeMatMul, W in int8 with a scale a word, a batch's activations in uint8, as
`quantize_dynamic` makes it; W in 7 bits on CPUs that saturate sums of two products. "8 bits",
"4 bits": MatMulNBits, W in blocks of 32 with a scale each and int8 activations (`accuracy_level`
4), the form in which language models are exported.
"""

from functools import cache
from typing import Any

import numpy as np
import torch

from benchmarks.race.methods import Knobs, Method
from benchmarks.race.points import QUANTISED
from logitsieve.api.results import Float32
from logitsieve.heads import Softmax

BLOCK = 32
BITS = {"4 bits": 4, "8 bits": 8}
STORED = ("int8", *BITS)
SETTINGS = {"session.force_spinning_stop": "1"}  # no thread of the pool spins in others' turns
GRAPH = """<ir_version: 10, opset_import: ["": 21, "com.microsoft": 1]>
head (float[B, {dim}] hidden, int64[1] k) => (int64[B, K] ids) {{
    logits = com.microsoft.{product}
    values, ids = TopK (logits, k)
}}"""
BY_ROWS = "DynamicQuantizeMatMul (hidden, codes, scales, , bias)"
BLOCKWISE = """MatMulNBits <K = {dim}, N = {words}, bits = {bits}, block_size = {block},
    accuracy_level = 4> (hidden, codes, scales, , , bias)"""


class OnnxRuntime(Method):
    """W in one of the forms `STORED`; a session for each number of threads."""

    kind = QUANTISED

    def __init__(self, softmax: Softmax, stored: str) -> None:
        from onnx import numpy_helper, parser

        self.name, bits = f"onnxruntime {stored}", BITS.get(stored)
        sizes = {"dim": softmax.dim, "words": softmax.vocab_size, "bits": bits, "block": BLOCK}
        product = (BLOCKWISE if bits else BY_ROWS).format(**sizes)
        codes, scales = blockwise(softmax, bits) if bits else by_rows(softmax)
        arrays = {"codes": codes, "scales": scales, "bias": softmax.bias}
        self.nbytes = sum(array.nbytes for array in arrays.values())
        model = parser.parse_model(GRAPH.format(product=product, **sizes))
        stored_arrays = (numpy_helper.from_array(array, name) for name, array in arrays.items())
        model.graph.initializer.extend(stored_arrays)
        self._session = cache(lambda threads: session(model.SerializeToString(), threads))
        self._now = self._session(1)

    def set_knobs(self, threads: int, knobs: Knobs) -> None:
        super().set_knobs(threads, knobs)
        self._now = self._session(threads)

    def topk(self, hidden_states: Float32, k: int) -> np.ndarray:
        sought = {"hidden": hidden_states, "k": np.array([k], np.int64)}
        return np.asarray(self._now.run(("ids",), sought)[0])


def by_rows(softmax: Softmax) -> tuple[np.ndarray, np.ndarray]:
    """int8 codes [D, V] and the scale of each word."""
    largest = 63 if saturates() else 127
    scales = np.maximum(abs(softmax.weight).max(axis=1), 1e-30) / np.float32(largest)
    codes = np.rint(softmax.weight / scales[:, None]).astype(np.int8)
    return np.ascontiguousarray(codes.T), scales


def saturates() -> bool:
    """True for x86 without VNNI: pairs of products of bytes are added in 16 bits there.

    ONNX Runtime's own quantiser makes 7-bit weights for such CPUs (`reduce_range`).
    """
    has = torch.cpu.get_capabilities()
    return has["architecture"] == "x86_64" and not (has["avx512_vnni"] or has["avx_vnni"])


def blockwise(softmax: Softmax, bits: int) -> tuple[np.ndarray, np.ndarray]:
    """Unsigned codes about 2^(bits - 1), and the scale of each block.

    A block's largest magnitude gets the lowest code, as in ONNX Runtime's own quantiser.
    """
    words, blocks, middle = softmax.vocab_size, -(-softmax.dim // BLOCK), 1 << (bits - 1)
    rows = np.pad(softmax.weight, ((0, 0), (0, -softmax.dim % BLOCK)))
    cut = rows.reshape(words, blocks, BLOCK)
    largest = np.take_along_axis(cut, abs(cut).argmax(axis=2)[:, :, None], axis=2)
    scales = np.where(largest == 0, 1, largest) / np.float32(-middle)
    codes = np.clip(np.rint(cut / scales) + middle, 0, 2 * middle - 1).astype(np.uint8)
    if bits == 4:
        codes = codes[:, :, ::2] | codes[:, :, 1::2] << 4
    return codes, scales[:, :, 0]


def session(made: bytes, threads: int) -> Any:
    """A session that runs the model on so many threads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    for name, value in SETTINGS.items():
        options.add_session_config_entry(name, value)
    return onnxruntime.InferenceSession(made, options, providers=["CPUExecutionProvider"])
