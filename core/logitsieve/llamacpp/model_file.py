"""The output layer in a GGUF file: matrix, bias, scale and softcap.

llama.cpp computes z = W h + b from the tensor h named `result_norm`. Some architectures scale z by
a constant, which we multiply h by instead. Some softcap it to cap * tanh(z / cap), which keeps the
order of logits and is applied to answers.
"""

import hashlib
import math
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Float32
from logitsieve.llamacpp.gguf_header import GgufHeader, Strings, TensorSpan, read_model
from logitsieve.utils.environment import require

TENSORS = ("output.weight", "token_embd.weight")  # the second with tied embeddings
BIAS = "output.bias"
FLOATS: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "BF16": np.uint16}
DEQUANTIZED_AT_ONCE = 1 << 24  # numbers

# An architecture multiplies logits by this power of its `logit_scale`.
INVERSE = ("granite", "granitemoe", "granitehybrid", "granite_swa", "graniteswitch", "minicpm")
SCALE_POWERS = {
    **dict.fromkeys(("command-r", "cohere2", "cohere2moe", "grok", "talkie"), 1),
    **dict.fromkeys(INVERSE, -1),
}
# hidden size -> scale of logits, if the key is missing
DEFAULT_SCALES: dict[str, Callable[[int], float]] = {
    "minicpm": lambda dim: dim / 256,
    "minicpm3": lambda dim: 256 / dim,
    "grok": lambda _: 3**-0.5,
}
DEFAULT_SOFTCAPS = dict.fromkeys(("gemma2", "gemma3n", "gemma4"), 30.0)
SUPPRESSED = "tokenizer.ggml.suppress_tokens"
TENSOR_SCALE = "output.scale"  # of NVFP4


class OutputMatrix(NamedTuple):
    name: str
    kind: str  # name of the ggml_type, such as "F16" or "Q8_0"
    blocks: np.ndarray  # [V, D] floats, with bfloat16 as bits; or uint8 [V, bytes]
    shape: tuple[int, int]

    def rows(self, rows: Any) -> Float32:
        """Return rows by slice or ids as float32, which is exact for every type but F64."""
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize

        stored = np.ascontiguousarray(self.blocks[rows])
        values = dequantize(stored.view(np.uint8), GGMLQuantizationType[self.kind])
        return np.asarray(values, np.float32).reshape(len(stored), self.shape[1])

    def dense(self, dtype: Any = None) -> np.ndarray:
        if self.kind in FLOATS and dtype in (None, FLOATS[self.kind]):
            return self.blocks
        values = np.empty(self.shape, np.float32)
        step = max(1, DEQUANTIZED_AT_ONCE // self.shape[1])
        for start in range(0, len(values), step):
            values[start : start + step] = self.rows(slice(start, start + step))
        return values


class GgufModel:
    """The model of a GGUF file, without its other layers. InvalidRequest names `field`."""

    def __init__(self, path: Path | str, field: str = "model") -> None:
        require("llamacpp", "gguf")
        self.path, self._field = Path(path), field
        self._digests: dict[str, str] = {}
        self._header: GgufHeader = read_model(self.path, field)
        self._refuse_others()
        architecture = self._header.metadata.get("general.architecture")
        if not isinstance(architecture, str):
            raise self._refused("no general.architecture", "a model's metadata")
        self.architecture = architecture
        self._refuse_truncated()
        self.matrix: OutputMatrix = self._matrix()
        self.bias: Float32 | None = self._bias()
        self.scale: float = self._scale()  # a factor for h
        cap = self._number("final_logit_softcapping", DEFAULT_SOFTCAPS.get(architecture, 0.0))
        self.softcap: float | None = cap or None
        self.suppressed: list[int] = self._suppressed()  # ids that must never be chosen

    @property
    def vocab_size(self) -> int:
        return self.matrix.shape[0]

    @property
    def dim(self) -> int:
        return self.matrix.shape[1]

    @cached_property
    def vocabulary(self) -> list[str] | None:
        tokens = self._header.metadata.get("tokenizer.ggml.tokens")
        return tokens.read() if isinstance(tokens, Strings) else None

    @property
    def layers(self) -> int:
        return int(self._number("block_count", 0))

    @cached_property
    def tensor_types(self) -> set[tuple[str, int]]:
        """The ggml_type and the row length of every tensor."""
        spans = self._header.tensors.items()
        return {(self._type_of(name, span)[0], span.shape[-1]) for name, span in spans}

    @property
    def chat_template(self) -> str | None:
        template = self._header.metadata.get("tokenizer.chat_template")
        return template if isinstance(template, str) else None

    @property
    def pre_tokenizer(self) -> str:
        """The name of the pattern that splits texts into words, or ""."""
        return str(self._header.metadata.get("tokenizer.ggml.pre", ""))

    def special(self, name: str) -> str:
        """Return the spelling of a special token such as "bos", or ""."""
        token = self._header.metadata.get(f"tokenizer.ggml.{name}_token_id")
        words = self.vocabulary or []
        return words[token] if isinstance(token, int) and 0 <= token < len(words) else ""

    def sha256(self, dtype: str) -> str:
        """Return the digest (hex) of an index of this layer; "" unless F32 or the file's type."""
        if dtype not in self._digests:
            self._digests[dtype] = self._digest(dtype)
        return self._digests[dtype]

    def _digest(self, dtype: str) -> str:
        if dtype == self.matrix.kind:
            values = self.matrix.blocks
        elif dtype == "F32":
            values = self.matrix.dense(np.float32)
        else:
            return ""
        digest = hashlib.sha256(f"{dtype} {self.vocab_size} {self.dim}\n".encode())
        bias = np.zeros(self.vocab_size, np.float32) if self.bias is None else self.bias
        for array in (values, bias):
            digest.update(np.ascontiguousarray(array).data.cast("B"))
        return digest.hexdigest()

    def _refused(self, got: str, allowed: str) -> InvalidRequest:
        return InvalidRequest(self._field, f"{self.path}: {got}", allowed)

    def _refuse_others(self) -> None:
        metadata = self._header.metadata
        architecture = metadata.get("general.architecture")
        kind = metadata.get("general.type", "model")
        if kind != "model" or architecture == "clip":
            got = f"a file of the type {kind!r:.40} (architecture {architecture!r:.40})"
            raise self._refused(got, "a model: adapters and projectors (mmproj) belong beside one")
        if metadata.get(f"{architecture}.pooling_type", 0) != 0:
            raise self._refused("a model of embeddings (pooling_type)", "a language model")
        if metadata.get(f"{architecture}.attention.causal") is False:
            got = f"{architecture}.attention.causal = false"
            raise self._refused(got, "a causal language model, whose tokens see only earlier ones")

    def _number(self, key: str, default: float) -> float:
        value = self._header.metadata.get(f"{self.architecture}.{key}", default)
        if not isinstance(value, int | float) or not np.isfinite(value) or value < 0:
            raise self._refused(f"{self.architecture}.{key} = {value!r:.40}", "a number, 0 or more")
        return float(value)

    def _scale(self) -> float:
        factor = self._tensor_scale()
        if f"{self.architecture}.logit_scale" not in self._header.metadata:
            default = DEFAULT_SCALES.get(self.architecture)
            return factor if default is None else factor * default(self.dim)
        scale = self._number("logit_scale", 0.0) or 1.0
        return float(factor * scale ** SCALE_POWERS.get(self.architecture, 0))

    def readings(self) -> list[tuple[float, float | None]]:
        """Return each (scale, softcap) that a build of llama.cpp may use, ours first.

        Builds differ in which of an architecture's keys they use, and how.
        """
        scales, caps = [self.scale], [self.softcap]
        if key := self._number("logit_scale", 0.0):
            factor = self._tensor_scale()
            scales += {factor, factor * key, factor / key} - {self.scale}
        if f"{self.architecture}.final_logit_softcapping" in self._header.metadata:
            caps = list(dict.fromkeys((self.softcap, None)))
        return [(scale, cap) for cap in caps for scale in scales]

    def _tensor_scale(self) -> float:
        span = self._header.tensors.get(TENSOR_SCALE)
        return 1.0 if span is None else float(self._floats(TENSOR_SCALE, span, (1,))[0])

    def _suppressed(self) -> list[int]:
        listed = self._header.metadata.get(SUPPRESSED)
        ids = np.unique(listed).tolist() if isinstance(listed, np.ndarray) else []
        return [token for token in ids if token in range(self.vocab_size)]

    def _matrix(self) -> OutputMatrix:
        name = next((name for name in TENSORS if name in self._header.tensors), None)
        if name is None:
            raise self._refused("no output matrix", f"a model with {' or '.join(TENSORS)}")
        span = self._header.tensors[name]
        kind, size = self._type_of(name, span)
        if len(span.shape) != 2:
            raise self._refused(f"{name} of shape {list(span.shape)}", "[V, D]")
        vocab_size, dim = span.shape
        raw = np.frombuffer(span.mapped, np.uint8, size, span.offset)
        rows = raw.view(FLOATS[kind]) if kind in FLOATS else raw
        matrix = OutputMatrix(name, kind, rows.reshape(vocab_size, -1), (vocab_size, dim))
        try:
            matrix.rows(slice(0, 1))
        except NotImplementedError as error:
            allowed = "a type whose numbers the installed gguf computes"
            raise self._refused(f"{name} of the type {kind}", allowed) from error
        return matrix

    def _bias(self) -> Float32 | None:
        span = self._header.tensors.get(BIAS)
        return None if span is None else self._floats(BIAS, span, (self.vocab_size,))

    def _floats(self, name: str, span: TensorSpan, shape: tuple[int, ...]) -> Float32:
        kind, size = self._type_of(name, span)
        if kind != "F32" or span.shape != shape:
            raise self._refused(f"{name}: {kind} {list(span.shape)}", f"F32 {list(shape)}")
        return np.frombuffer(span.mapped, np.uint8, size, span.offset).view(np.float32)

    def _type_of(self, name: str, span: TensorSpan) -> tuple[str, int]:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        try:
            kind = GGMLQuantizationType(span.kind)
        except ValueError as error:
            got = f"{name} of the unknown tensor type {span.kind}"
            raise self._refused(got, "a type that the installed gguf knows") from error
        columns, block_bytes = GGML_QUANT_SIZES[kind]
        if span.shape[-1] % columns or 0 in span.shape:
            got = f"{name}: {kind.name} {list(span.shape)}"
            raise self._refused(got, f"rows of whole blocks of {columns}")
        return kind.name, math.prod(span.shape) // columns * block_bytes

    def _refuse_truncated(self) -> None:
        for name, span in self._header.tensors.items():
            end, needed = len(span.mapped), span.offset + self._type_of(name, span)[1]
            if needed > end:
                raise self._refused(f"truncated: {end} bytes, {name} ends at {needed}", "it whole")
