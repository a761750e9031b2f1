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
from logitsieve.api.results import Float32
from logitsieve.heads import Softmax

BLOCK = 32
BITS = {"4 bits": 4, "8 bits": 8}
STORED = ("int8", *BITS)
CONTRIB = "com.microsoft"
SETTINGS = {"session.force_spinning_stop": "1"}  # no thread of the pool spins in others' turns


class OnnxRuntime(Method):
    """W in one of the forms `STORED`; a session for each number of threads."""

    def __init__(self, softmax: Softmax, stored: str) -> None:
        self.name = f"onnxruntime {stored}"
        if bits := BITS.get(stored):
            product, arrays = blockwise(softmax, bits)
        else:
            product, arrays = by_rows(softmax)
        self.nbytes = sum(array.nbytes for array in arrays.values())
        self._session = cache(lambda threads: session(model(softmax, product, arrays), threads))
        self._now = self._session(1)

    def set_knobs(self, threads: int, knobs: Knobs) -> None:
        super().set_knobs(threads, knobs)
        self._now = self._session(threads)

    def topk(self, hidden: Float32, k: int) -> np.ndarray:
        sought = {"hidden": hidden, "k": np.array([k], np.int64)}
        return np.asarray(self._now.run(("ids",), sought)[0])


def by_rows(softmax: Softmax) -> tuple[Any, dict[str, np.ndarray]]:
    """The node of an int8 product with one scale for each word, and its arrays."""
    from onnx import helper

    largest = 63 if saturates() else 127
    scales = np.maximum(abs(softmax.weight).max(axis=1), 1e-30) / np.float32(largest)
    codes = np.rint(softmax.weight / scales[:, None]).astype(np.int8)
    arrays = {"codes": np.ascontiguousarray(codes.T), "scales": scales, "bias": softmax.bias}
    inputs = ["hidden", "codes", "scales", "", "bias"]
    node = helper.make_node("DynamicQuantizeMatMul", inputs, ["logits"], domain=CONTRIB)
    return node, arrays


def saturates() -> bool:
    """True for x86 without VNNI: pairs of products of bytes are added in 16 bits there.

    ONNX Runtime's own quantiser makes 7-bit weights for such CPUs (`reduce_range`).
    """
    has = torch.cpu.get_capabilities()
    return has["architecture"] == "x86_64" and not (has["avx512_vnni"] or has["avx_vnni"])


def blockwise(softmax: Softmax, bits: int) -> tuple[Any, dict[str, np.ndarray]]:
    """The node of a product with unsigned codes about 2^(bits - 1), and its arrays.

    A block's largest magnitude gets the lowest code, as in ONNX Runtime's own quantiser.
    """
    from onnx import helper

    words, blocks, middle = softmax.vocab_size, -(-softmax.dim // BLOCK), 1 << (bits - 1)
    rows = np.zeros((words, blocks * BLOCK), np.float32)
    rows[:, : softmax.dim] = softmax.weight
    cut = rows.reshape(words, blocks, BLOCK)
    largest = np.take_along_axis(cut, abs(cut).argmax(axis=2)[:, :, None], axis=2)
    scales = np.where(largest == 0, 1, largest) / np.float32(-middle)
    codes = np.clip(np.rint(cut / scales) + middle, 0, 2 * middle - 1).astype(np.uint8)
    if bits == 4:
        codes = codes[:, :, ::2] | codes[:, :, 1::2] << 4
    arrays = {"codes": codes, "scales": scales[:, :, 0], "bias": softmax.bias}
    node = helper.make_node(
        "MatMulNBits",
        ["hidden", "codes", "scales", "", "", "bias"],
        ["logits"],
        domain=CONTRIB,
        K=softmax.dim,
        N=words,
        bits=bits,
        block_size=BLOCK,
        accuracy_level=4,
    )
    return node, arrays


def model(softmax: Softmax, product: Any, arrays: dict[str, np.ndarray]) -> bytes:
    """One product and TopK: float32 `hidden` [B, D] and `k` in, `ids` int64 [B, k] out."""
    from onnx import TensorProto, helper, numpy_helper

    best = helper.make_node("TopK", ["logits", "k"], ["values", "ids"])
    inputs = [
        helper.make_tensor_value_info("hidden", TensorProto.FLOAT, ["B", softmax.dim]),
        helper.make_tensor_value_info("k", TensorProto.INT64, [1]),
    ]
    outputs = [helper.make_tensor_value_info("ids", TensorProto.INT64, ["B", "k"])]
    stored = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph([product, best], "head", inputs, outputs, stored)
    domains = [helper.make_opsetid("", 21), helper.make_opsetid(CONTRIB, 1)]
    made: bytes = helper.make_model(graph, opset_imports=domains, ir_version=10).SerializeToString()
    return made


def session(made: bytes, threads: int) -> Any:
    """A session that runs the model on so many threads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    for name, value in SETTINGS.items():
        options.add_session_config_entry(name, value)
    return onnxruntime.InferenceSession(made, options, providers=["CPUExecutionProvider"])
