"""ModelInfer's requests as our own, and our responses as its."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from tritonclient.grpc import service_pb2 as kserve

from logitsieve.api.decoder import NORMALIZER_CODES
from logitsieve.api.errors import InvalidRequest
from logitsieve.server.rpc.methods import METHODS, Method
from logitsieve.utils.wire_tensors import DType
from logitsieve.v1 import decoder_pb2 as pb

# KServe's name of a datatype -> ours, and the field of typed contents that it may come in.
DATATYPES: dict[str, tuple[DType, str]] = {
    "FP32": (DType.FLOAT32, "fp32_contents"),
    "FP16": (DType.FLOAT16, ""),
    "BF16": (DType.BFLOAT16, ""),
    "INT32": (DType.INT32, "int_contents"),
    "UINT64": (DType.UINT64, "uint64_contents"),
    "BOOL": (DType.BOOL, "bool_contents"),
}
NAMES = {int(dtype): name for name, (dtype, _) in DATATYPES.items()}
TYPED = {DType.FLOAT32: "<f4", DType.INT32: "<i4", DType.UINT64: "<u8"}
MOST = 1 << 32  # of what our messages count


class TensorKind(NamedTuple):
    """A tensor of the interface: B rows, D the hidden size, K answers or draws a row."""

    name: str
    datatypes: tuple[str, ...]
    shape: str
    methods: tuple[str, ...] = ("topk", "sample")

    def metadata(self, dim: int) -> Any:
        """As ModelMetadata has it, with the first of the datatypes; -1 is any size."""
        sizes = {"D": dim, "1": 1}
        return kserve.ModelMetadataResponse.TensorMetadata(
            name=self.name,
            datatype=self.datatypes[0],
            shape=[sizes.get(letter, -1) for letter in self.shape],
        )


TENSORS: dict[str, tuple[TensorKind, ...]] = {
    "inputs": (
        TensorKind("hidden", ("FP32", "FP16", "BF16"), "BD"),
        TensorKind("k", ("INT32",), "1", ("topk",)),
        TensorKind("samples", ("INT32",), "1", ("sample",)),
        TensorKind("seeds", ("UINT64",), "B", ("sample",)),
    ),
    "outputs": (
        TensorKind("ids", ("INT32",), "BK"),
        TensorKind("logits", ("FP32",), "BK", ("topk",)),
        TensorKind("log_probs", ("FP32",), "BK", ("sample",)),
        TensorKind("exact", ("BOOL",), "B"),
        TensorKind("scanned", ("INT32",), "B"),
        TensorKind("log_z", ("FP32",), "B"),
    ),
}
# The parameter `method` -> the name of ours.
KINDS = {"topk": "top_k", "sample": "sample"}


class Asked(NamedTuple):
    """A request as our own, and what to tell of its reply."""

    method: Method
    request: Any
    outputs: tuple[str, ...]
    timeout_s: float  # 0: none but the call's own


class Parameters:
    """The parameters of a request, each of them taken by its name and type."""

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        self._left = {
            name: getattr(value, value.WhichOneof("parameter_choice") or "", None)
            for name, value in parameters.items()
        }

    def has(self, name: str) -> bool:
        """Whether it is there and nobody took it."""
        return name in self._left

    def text(self, name: str) -> str:
        """A string; empty if absent."""
        return self._take(name, str, "a string") or ""

    def flag(self, name: str) -> bool:
        """A bool; false if absent."""
        return self._take(name, bool, "a bool") or False

    def number(self, name: str, default: float) -> float:
        """An int or a double."""
        found = self._take(name, (int, float), "a number")
        return default if found is None else float(found)

    def whole(self, name: str, default: int = 0, most: int = MOST) -> int:
        """An int in 0..most - 1."""
        found = self._take(name, int, "an integer")
        return default if found is None else _within(f"parameters.{name}", found, most)

    def knobs(self) -> dict[str, float]:
        """Of "knobs.<name>"."""
        names = [name for name in self._left if name.startswith("knobs.")]
        return {name.removeprefix("knobs."): self.number(name, 0.0) for name in names}

    def require_none_left(self) -> None:
        """InvalidRequest names one that nobody took."""
        for name in self._left:
            raise InvalidRequest(f"parameters.{name[:100]}", "it", "parameters of the method asked")

    def _take(self, name: str, kind: Any, allowed: str) -> Any:
        if name not in self._left:
            return None
        found = self._left.pop(name)
        if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
            raise InvalidRequest(f"parameters.{name[:100]}", type(found).__name__, allowed)
        return found


def to_asked(message: Any, model: str) -> Asked:
    """A ModelInferRequest as a request of ours for `model`; InvalidRequest names what is wrong."""
    parameters = Parameters(message.parameters)
    kind = parameters.text("method") or "topk"
    if kind not in KINDS:
        raise InvalidRequest("parameters.method", repr(kind[:100]), ", ".join(KINDS))
    inputs = _inputs(message, kind)
    target = _target(parameters, model)
    make: Callable[..., Any] = {"topk": _top_k, "sample": _sample}[kind]
    request = make(target, inputs, parameters)
    timeout_us = parameters.whole("timeout", most=MOST**2)
    parameters.require_none_left()
    told = [one.name for one in TENSORS["outputs"] if kind in one.methods]
    if kind == "topk" and not target.normalizer:
        told.remove("log_z")
    return Asked(METHODS[KINDS[kind]], request, _outputs(message, told), timeout_us * 1e-6)


def to_infer_response(asked: Asked, response: bytes, request_id: str) -> Any:
    """A response of ours as a ModelInferResponse with raw contents, in the order asked for."""
    reply: Any = asked.method.response.FromString(response)
    answer = reply.answer
    message = kserve.ModelInferResponse(
        model_name=answer.model, model_version=answer.version, id=request_id
    )
    message.parameters["head"].string_param = answer.head.name
    message.parameters["digest"].string_param = answer.digest
    if answer.normalizer:
        normalizer = pb.Normalizer.Name(answer.normalizer).removeprefix("NORMALIZER_").lower()
        message.parameters["normalizer"].string_param = normalizer
    for name in asked.outputs:
        of_a_row = name in ("exact", "scanned", "log_z")
        tensor = getattr(answer if of_a_row else reply, name)
        shape = [tensor.rows] if of_a_row else [tensor.rows, tensor.cols]
        message.outputs.add(name=name, datatype=NAMES[tensor.dtype], shape=shape)
        message.raw_output_contents.append(tensor.data)
    return message


def _top_k(target: pb.Target, inputs: dict[str, pb.Tensor], parameters: Parameters) -> Any:
    return pb.TopKRequest(target=target, hidden=inputs.get("hidden"), k=_scalar(inputs, "k"))


def _sample(target: pb.Target, inputs: dict[str, pb.Tensor], parameters: Parameters) -> Any:
    return pb.SampleRequest(
        target=target,
        hidden=inputs.get("hidden"),
        samples=_scalar(inputs, "samples") if "samples" in inputs else 1,
        seeds=inputs.get("seeds"),
        step=parameters.whole("step", most=MOST**2),
        temperature=parameters.number("temperature", 1.0),
        top_k=parameters.whole("top_k"),
        top_p=parameters.number("top_p", 1.0),
        min_p=parameters.number("min_p", 0.0),
    )


def _target(parameters: Parameters, model: str) -> pb.Target:
    """What AUTO may choose among, as our own requests say it."""
    head, knobs = parameters.text("head"), parameters.knobs()
    precise, precision = parameters.has("min_precision"), parameters.number("min_precision", 0.0)
    exact = parameters.flag("exact")
    normalizer = parameters.text("normalizer")
    if normalizer and normalizer not in NORMALIZER_CODES:
        allowed = ", ".join(NORMALIZER_CODES)
        raise InvalidRequest("parameters.normalizer", repr(normalizer[:100]), allowed)
    if bool(head or knobs) + precise + exact > 1:
        allowed = "one of head with knobs, min_precision, exact"
        raise InvalidRequest("parameters", "several", allowed)
    code: Any = NORMALIZER_CODES[normalizer] if normalizer else 0
    target = pb.Target(model=model, normalizer=code)
    if head or knobs:
        target.head.CopyFrom(pb.Head(name=head, knobs=knobs))
    elif precise:
        target.min_precision = precision
    elif exact:
        target.exact = True
    return target


def _inputs(message: Any, kind: str) -> dict[str, pb.Tensor]:
    known = {one.name: one for one in TENSORS["inputs"] if kind in one.methods}
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        allowed = f"{len(message.inputs)}, one for each input, or none"
        raise InvalidRequest("raw_input_contents", len(raw), allowed)
    found: dict[str, pb.Tensor] = {}
    for place, tensor in enumerate(message.inputs):
        if tensor.name not in known or tensor.name in found:
            allowed = f"each once of {', '.join(known)}"
            raise InvalidRequest("inputs", repr(tensor.name[:100]), allowed)
        _require_plain(tensor)
        found[tensor.name] = _tensor(tensor, known[tensor.name], raw[place] if raw else None)
    return found


def _tensor(tensor: Any, kind: TensorKind, raw: bytes | None) -> pb.Tensor:
    """A tensor of ours; that its bytes fit its shape is checked where it is read."""
    field = kind.name
    if tensor.datatype not in kind.datatypes:
        raise InvalidRequest(
            f"{field}.datatype", repr(tensor.datatype[:100]), ", ".join(kind.datatypes)
        )
    if len(tensor.shape) != len(kind.shape):
        raise InvalidRequest(f"{field}.shape", f"{len(tensor.shape)} dimensions", f"[{kind.shape}]")
    rows, cols = (_within(f"{field}.shape", size, MOST) for size in (*tensor.shape, 1)[:2])
    dtype, typed = DATATYPES[tensor.datatype]
    if raw is not None and tensor.HasField("contents"):
        raise InvalidRequest(f"{field}.contents", "both", "contents or raw_input_contents")
    if raw is None:
        if not typed:
            raise InvalidRequest(f"{field}.contents", tensor.datatype, "raw_input_contents")
        raw = np.asarray(getattr(tensor.contents, typed), TYPED[dtype]).tobytes()
    code: Any = int(dtype)
    return pb.Tensor(dtype=code, rows=rows, cols=cols, data=raw)


def _outputs(message: Any, told: list[str]) -> tuple[str, ...]:
    for tensor in message.outputs:
        if tensor.name not in told:
            raise InvalidRequest("outputs", repr(tensor.name[:100]), ", ".join(told))
        _require_plain(tensor)
    return tuple(tensor.name for tensor in message.outputs) or tuple(told)


def _require_plain(tensor: Any) -> None:
    """Shared memory and classification come as a tensor's parameters."""
    for name in tensor.parameters:
        raise InvalidRequest(f"{tensor.name}.parameters", repr(name[:100]), "none")


def _scalar(inputs: dict[str, pb.Tensor], name: str) -> int:
    tensor = inputs.get(name)
    if tensor is None or len(tensor.data) != 4:
        raise InvalidRequest(name, "nothing" if tensor is None else "more", "one integer")
    return _within(name, int(np.frombuffer(tensor.data, "<i4")[0]), MOST)


def _within(field: str, value: int, most: int) -> int:
    if not 0 <= value < most:
        raise InvalidRequest(field, value, f"0..{most - 1}")
    return value
