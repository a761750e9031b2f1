from functools import lru_cache
from typing import Any, cast

import numpy as np

from logitsieve.api.constraints import SETS, Constraints, IdSets
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.keywords import (
    AUTO,
    NORMALIZER_CODES,
    ResolvedSpec,
    asked_precision,
    asked_width,
)
from logitsieve.api.results import ANSWER_COLUMNS
from logitsieve.utils.wire_tensors import CODES, DType, decode
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.rpcs import Reply

NORMALIZER_NAMES: dict[int, str] = {code: name for name, code in NORMALIZER_CODES.items()}
PROVENANCE = ("proven", "scanned", "fallback")
LENGTH_DELIMITED = 2
STARTS_KEPT = 4096  # results of `_start`, of about 200 bytes each
POINTS_KEPT, POINT_BYTES = 1024, 256  # cached specs, and the longest one that is cached


def to_array(tensor: Any, field: str, only: DType | None = None) -> np.ndarray:
    """Return a tensor's elements [rows, cols], without a copy.

    InvalidRequest names `field`. If `only` is given, no other dtype is allowed.
    """
    dtype, data = int(tensor.dtype), tensor.data  # protobuf copies the bytes at each access
    if not dtype and not data:
        raise InvalidRequest(field, "nothing", "a tensor")
    if only is not None and dtype != int(only):
        raise InvalidRequest(f"{field}.dtype", dtype, f"{only.value} ({only.name})")
    array = decode(dtype, tensor.rows, tensor.cols, data, field)
    if only is DType.BOOL and array.view(np.uint8).max(initial=0) > 1:
        raise InvalidRequest(f"{field}.data", "other bytes", "bytes of 0 or 1")
    return array


def to_vector(tensor: Any, field: str, dtype: DType) -> np.ndarray:
    array = to_array(tensor, field, dtype)
    if array.shape[1] != 1:
        raise InvalidRequest(f"{field}.cols", array.shape[1], "1: a vector")
    return array[:, 0]


def vector_if_set(message: Any, name: str, dtype: DType, parent: str = "") -> np.ndarray | None:
    if not message.HasField(name):
        return None
    return to_vector(getattr(message, name), parent + name, dtype)


def to_resolved_spec(spec: pb.ModelSpec, max_error: float | None = None) -> ResolvedSpec:
    """Convert a spec; `max_error` is the default if it sets none."""
    if spec.ByteSize() > POINT_BYTES:
        return _to_resolved_spec(spec, max_error)
    return _known_spec(spec.SerializeToString(), max_error)


@lru_cache(maxsize=POINTS_KEPT)
def _known_spec(spec: bytes, max_error: float | None) -> ResolvedSpec:
    return _to_resolved_spec(pb.ModelSpec.FromString(spec), max_error)


def _to_resolved_spec(spec: pb.ModelSpec, max_error: float | None) -> ResolvedSpec:
    code = spec.normalizer
    normalizer = NORMALIZER_NAMES.get(code, str(code)) if code else ""
    head, knobs, precision = "", dict[str, float](), None
    match spec.WhichOneof("point"):
        case "head":
            head, knobs = spec.head.name, dict(spec.head.knobs)
            if head == AUTO:
                head, precision = "", asked_precision(head, knobs, None, False)
        case "min_precision":
            precision = asked_precision("", None, spec.min_precision, False)
        case "exact":
            precision = asked_precision("", None, None, spec.exact)
    if spec.HasField("max_error"):
        max_error = spec.max_error
    elif head or knobs or precision is not None:
        max_error = None
    log_z = normalizer, asked_width(spec.log_z_width or None)
    return ResolvedSpec.of(head, tuple(sorted(knobs.items())), precision, max_error, *log_z)


def to_constraints(message: pb.Constraints, most_ids: int) -> Constraints:
    given = [name for name in SETS if message.HasField(name)]
    sets = {name: _to_sets(getattr(message, name), f"constraints.{name}") for name in given}
    ids = sum(len(one.ids) for one in sets.values())
    mask = to_array(message.mask, "constraints.mask") if message.HasField("mask") else None
    ids += 0 if mask is None else mask.size
    if ids > most_ids:
        got = f"{ids} ids and words of the mask"
        raise InvalidRequest("constraints", got, f"at most {most_ids} in all")
    bias = vector_if_set(message, "bias", DType.FLOAT32, "constraints.")
    penalty = message.repetition_penalty or 1.0
    return Constraints(**sets, bias=bias, repetition_penalty=penalty, mask=mask)


def _to_sets(message: pb.IdSets, field: str) -> IdSets:
    ids = vector_if_set(message, "ids", DType.INT32, f"{field}.")
    offsets = to_vector(message.offsets, f"{field}.offsets", DType.INT32)
    return IdSets(offsets, np.empty(0, np.int32) if ids is None else ids)


def to_response(kind: Any, reply: Reply, origin: bytes, queue_ns: int) -> bytes:
    """Serialize a reply as a message of type `kind` that begins with `origin` (`origin_of`).

    Each part is a message of its own; protobuf merges concatenated messages. The arrays of a
    reply have the names of the message's fields.
    """
    answer, parts = reply.answer, [origin]
    arrays = cast("tuple[np.ndarray | None, ...]", reply[:-1])
    for name, array in zip(reply._fields, arrays, strict=False):
        if array is not None:
            parts += _start(kind, name, array.dtype, array.shape), array.tobytes()
    for name in ANSWER_COLUMNS if answer.normalizer else PROVENANCE:
        if (column := getattr(answer, name)) is not None:
            parts += _start(kind, "answer." + name, column.dtype, column.shape), column.tobytes()
    rest = kind()
    rest.answer.queue_ns, rest.answer.compute_ns = queue_ns, answer.compute_ns
    if answer.max_error < 1.0:
        rest.answer.max_error = answer.max_error
    if answer.normalizer:
        rest.answer.normalizer = NORMALIZER_CODES[answer.normalizer]
    for first, rows in answer.rows_missing:
        rest.answer.rows_missing.add(first=first, rows=rows)
    parts.append(rest.SerializeToString())
    return b"".join(parts)


@lru_cache(maxsize=STARTS_KEPT)
def _start(kind: Any, path: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """Serialize a `kind` with a tensor in its field `path`, without the tensor's elements."""
    rows, cols = (*shape, 1)[:2]
    size = rows * cols * dtype.itemsize
    tensor = pb.Tensor(dtype=cast(Any, CODES[dtype]), rows=rows, cols=cols).SerializeToString()
    start, numbers, message = tensor + _head(pb.Tensor.DATA_FIELD_NUMBER, size), [], kind.DESCRIPTOR
    for name in path.split("."):
        field = message.fields_by_name[name]
        numbers.append(field.number)
        message = field.message_type
    for number in reversed(numbers):
        start = _head(number, len(start) + size) + start
    return start


def to_decode_response(request_id: int, field: str, response: bytes) -> bytes:
    number = pb.DecodeResponse.DESCRIPTOR.fields_by_name[field].number
    start = pb.DecodeResponse(id=request_id).SerializeToString()
    return start + _head(number, len(response)) + response


def _head(number: int, size: int) -> bytes:
    return _varint(number << 3 | LENGTH_DELIMITED) + _varint(size)


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 127:
        encoded.append(number & 127 | 128)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)
