"""Translates requests of ModelInfer to ours, and our replies to its responses."""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
from tritonclient.grpc import service_pb2 as kserve

from logitsieve.api.checks import whole
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.keywords import NORMALIZER_CODES
from logitsieve.api.requests import Sampling
from logitsieve.server.rpc.decoder_service import Write
from logitsieve.server.rpc.methods import METHODS, Method
from logitsieve.utils.wire_tensors import NUMPY_TYPES, DType, encode
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.rpcs import SAMPLE, TOP_K, Reply

DATATYPES: dict[str, tuple[DType, str]] = {
    "FP32": (DType.FLOAT32, "fp32_contents"),
    "FP16": (DType.FLOAT16, ""),
    "BF16": (DType.BFLOAT16, ""),
    "INT32": (DType.INT32, "int_contents"),
    "UINT64": (DType.UINT64, "uint64_contents"),
    "BOOL": (DType.BOOL, "bool_contents"),
}
NAMES = {int(dtype): name for name, (dtype, _) in DATATYPES.items()}
MOST = 1 << 32  # the first integer that does not fit into a uint32


class TensorKind(NamedTuple):
    """A tensor; letters of its shape are B rows, D hidden size, K answers or draws a row."""

    name: str
    datatypes: tuple[str, ...]
    shape: str
    methods: tuple[str, ...] = ("topk", "sample")

    def sizes(self, dim: int) -> list[int]:
        """Return its shape, -1 for sizes that a request decides."""
        return [{"D": dim, "1": 1}.get(letter, -1) for letter in self.shape]


TENSORS: dict[str, tuple[TensorKind, ...]] = {
    "inputs": (
        TensorKind("hidden_states", ("FP32", "FP16", "BF16"), "BD"),
        TensorKind("k", ("INT32",), "1", ("topk",)),
        TensorKind("samples", ("INT32",), "1", ("sample",)),
        TensorKind("seeds", ("UINT64",), "B", ("sample",)),
    ),
    "outputs": (
        TensorKind("ids", ("INT32",), "BK"),
        TensorKind("logits", ("FP32",), "BK", ("topk",)),
        TensorKind("log_probs", ("FP32",), "BK", ("sample",)),
        TensorKind("perturbed", ("FP32",), "BK", ("sample",)),
        TensorKind("proven", ("BOOL",), "B"),
        TensorKind("scanned", ("INT32",), "B"),
        TensorKind("log_z", ("FP32",), "B"),
    ),
}
KINDS = {rpc.method: METHODS[rpc.field] for rpc in (TOP_K, SAMPLE)}
Kind = tuple[type | tuple[type, ...], str]
TEXT: Kind = (str, "a string")
NUMBER: Kind = ((int, float), "a number")
WHOLE: Kind = (int, "an integer")
FLAG: Kind = (bool, "a bool")
OF_ANY = {
    "method": TEXT,
    "head": TEXT,
    "knobs.<name>": NUMBER,
    "min_precision": NUMBER,
    "exact": FLAG,
    "max_error": NUMBER,
    "normalizer": TEXT,
    "width": NUMBER,
    "timeout": WHOLE,
}
BY_TYPE = {int: WHOLE, float: NUMBER, bool: FLAG}
OF_SAMPLE = {
    name: BY_TYPE[type(default)]
    for name, default in Sampling._field_defaults.items()
    if name != "log_probs"
}
BY_ROW = ("proven", "scanned", "log_z")


def read_parameters(message: Any) -> tuple[str, dict[str, Any]]:
    given = {
        name: getattr(value, value.WhichOneof("parameter_choice") or "", None)
        for name, value in message.parameters.items()
    }
    method = given.get("method") or TOP_K.method
    if method not in KINDS:
        raise InvalidRequest("parameters.method", f"{method!r:.100}", ", ".join(KINDS))
    kinds = OF_ANY | (OF_SAMPLE if method == SAMPLE.method else {})
    for name, value in given.items():
        field = f"parameters.{name[:100]}"
        kind = kinds.get("knobs.<name>" if name.startswith("knobs.") else name)
        if kind is None:
            raise InvalidRequest(field, f"{name[:100]!r} for {method}", ", ".join(kinds))
        if not isinstance(value, kind[0]) or (isinstance(value, bool) and kind is not FLAG):
            raise InvalidRequest(field, type(value).__name__, kind[1])
    return method, given


def to_request(message: Any, model: str, max_rows: int) -> tuple[Method, Any, float, Write]:
    """Translate a ModelInferRequest; it runs before admission, so it must be cheap.

    Returns the method, its request, its timeout in seconds (0: none), and the response's writer.
    """
    kind, parameters = read_parameters(message)
    inputs, spec = _inputs(message, kind, max_rows), _spec(parameters, model)
    hidden_states = inputs.get("hidden_states")
    request: pb.TopKRequest | pb.SampleRequest
    if kind == TOP_K.method:
        request = pb.TopKRequest(
            model_spec=spec, hidden_states=hidden_states, k=_scalar(inputs, "k")
        )
    else:
        options = {name: parameters[name] for name in OF_SAMPLE if name in parameters}
        for name, most in (("step", MOST**2 - 1), ("top_k", MOST - 1)):
            whole(f"parameters.{name}", options.get(name, 0), 0, most)
        request = pb.SampleRequest(
            model_spec=spec,
            hidden_states=hidden_states,
            samples=_scalar(inputs, "samples") if "samples" in inputs else 1,
            seeds=inputs.get("seeds"),
            **options,
        )
    timeout_us = whole("parameters.timeout", parameters.get("timeout", 0), 0, MOST**2 - 1)
    outputs = [one.name for one in TENSORS["outputs"] if kind in one.methods]
    if kind == TOP_K.method and not (spec.normalizer or spec.log_z_width):
        outputs.remove("log_z")
    if kind == SAMPLE.method and parameters.get("replace", True):
        outputs.remove("perturbed")
    write = partial(to_infer_response, _outputs(message, outputs), message.id)
    return KINDS[kind], request, timeout_us * 1e-6, write


def to_infer_response(outputs: tuple[str, ...], request_id: str, reply: Reply) -> bytes:
    answer = reply.answer
    message = kserve.ModelInferResponse(
        model_name=answer.model, model_version=answer.version, id=request_id
    )
    message.parameters["head"].string_param = answer.head
    message.parameters["digest"].string_param = answer.digest
    message.parameters["max_error"].double_param = answer.max_error
    if answer.normalizer:
        message.parameters["normalizer"].string_param = answer.normalizer
    for name in outputs:
        array: np.ndarray = getattr(answer if name in BY_ROW else reply, name)
        code, _, _, data = encode(array)
        message.outputs.add(name=name, datatype=NAMES[code], shape=array.shape)
        message.raw_output_contents.append(data)
    return cast(bytes, message.SerializeToString())


def _spec(parameters: Mapping[str, Any], model: str) -> pb.ModelSpec:
    names = [name for name in parameters if name.startswith("knobs.")]
    head, knobs = parameters.get("head"), {name[6:]: parameters[name] for name in names}
    precision, exact = parameters.get("min_precision"), parameters.get("exact", False)
    normalizer, width = parameters.get("normalizer", ""), parameters.get("width", 0.0)
    if normalizer and normalizer not in NORMALIZER_CODES:
        allowed = ", ".join(NORMALIZER_CODES)
        raise InvalidRequest("parameters.normalizer", repr(normalizer[:100]), allowed)
    if bool(head or knobs) + (precision is not None) + exact > 1:
        allowed = "one of head with knobs, min_precision, exact"
        raise InvalidRequest("parameters", "several", allowed)
    code: Any = NORMALIZER_CODES[normalizer] if normalizer else 0
    asked = parameters.get("max_error")
    spec = pb.ModelSpec(model=model, normalizer=code, log_z_width=width, max_error=asked)
    if head or knobs:
        spec.head.CopyFrom(pb.Head(name=head, knobs=knobs))
    elif precision is not None:
        spec.min_precision = precision
    elif exact:
        spec.exact = True
    return spec


def _inputs(message: Any, kind: str, max_rows: int) -> dict[str, pb.Tensor]:
    kinds = {one.name: one for one in TENSORS["inputs"] if kind in one.methods}
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        allowed = f"{len(message.inputs)}, one for each input, or none"
        raise InvalidRequest("raw_input_contents", len(raw), allowed)
    inputs: dict[str, pb.Tensor] = {}
    for place, tensor in enumerate(message.inputs):
        if tensor.name not in kinds or tensor.name in inputs:
            allowed = f"each once of {', '.join(kinds)}"
            raise InvalidRequest("inputs", repr(tensor.name[:100]), allowed)
        _require_plain(tensor)
        data = raw[place] if raw else None
        inputs[tensor.name] = _tensor(tensor, kinds[tensor.name], data, max_rows)
    return inputs


def _tensor(tensor: Any, kind: TensorKind, raw: bytes | None, max_rows: int) -> pb.Tensor:
    field = kind.name
    if tensor.datatype not in kind.datatypes:
        allowed = ", ".join(kind.datatypes)
        raise InvalidRequest(f"{field}.datatype", repr(tensor.datatype[:100]), allowed)
    if len(tensor.shape) != len(kind.shape):
        raise InvalidRequest(f"{field}.shape", f"{len(tensor.shape)} dimensions", f"[{kind.shape}]")
    rows, cols = (whole(f"{field}.shape", size, 0, MOST - 1) for size in (*tensor.shape, 1)[:2])
    if rows > max_rows:
        raise InvalidRequest(field, f"{rows} rows", f"1..{max_rows} rows")
    dtype, typed = DATATYPES[tensor.datatype]
    if raw is not None and tensor.HasField("contents"):
        raise InvalidRequest(f"{field}.contents", "both", "contents or raw_input_contents")
    if raw is None:
        if not typed:
            raise InvalidRequest(f"{field}.contents", tensor.datatype, "raw_input_contents")
        for other, _ in tensor.contents.ListFields():
            if other.name != typed:
                raise InvalidRequest(f"{field}.contents", other.name, f"{typed} alone")
        raw = _typed_bytes(tensor.contents, typed, dtype, rows * cols, field)
    return pb.Tensor(dtype=cast(Any, int(dtype)), rows=rows, cols=cols, data=raw)


def _typed_bytes(contents: Any, typed: str, dtype: DType, size: int, field: str) -> bytes:
    values = getattr(contents, typed)
    if len(values) != size:
        raise InvalidRequest(f"{field}.contents", f"{len(values)} values", f"{size}, by its shape")
    if dtype == DType.FLOAT32 and size:  # a list of floats would take 20 times the memory
        contents.DiscardUnknownFields()  # they would be serialized after the floats
        return cast(bytes, contents.SerializeToString()[-4 * size :])
    return np.asarray(values, NUMPY_TYPES[dtype]).tobytes()


def _outputs(message: Any, names: list[str]) -> tuple[str, ...]:
    requested: list[str] = []
    for tensor in message.outputs:
        if tensor.name not in names or tensor.name in requested:
            allowed = f"each once of {', '.join(names)}"
            raise InvalidRequest("outputs", repr(tensor.name[:100]), allowed)
        _require_plain(tensor)
        requested.append(tensor.name)
    return tuple(requested or names)


def _require_plain(tensor: Any) -> None:
    """Refuse shared memory and classification."""
    for name in tensor.parameters:
        raise InvalidRequest(f"{tensor.name}.parameters", repr(name[:100]), "none")


def _scalar(inputs: dict[str, pb.Tensor], name: str) -> int:
    allowed = "an INT32 input of one integer"
    if name not in inputs:
        raise InvalidRequest(name, "no such input", allowed)
    data = inputs[name].data
    if (rows := inputs[name].rows) != 1:
        raise InvalidRequest(f"{name}.shape", f"[{rows}]", "[1]")
    if len(data) != 4:
        raise InvalidRequest(name, f"{len(data)} bytes", allowed)
    return whole(name, int(np.frombuffer(data, "<i4")[0]), 0, MOST - 1)
