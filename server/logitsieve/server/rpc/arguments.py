"""What messages hold, as what decoders take."""

from __future__ import annotations

from typing import Any

import numpy as np

from logitsieve.api.constraints import Constraints, IdSets
from logitsieve.api.decoder import AUTO, NORMALIZER_CODES, PointRequest, asked_precision
from logitsieve.api.errors import InvalidRequest
from logitsieve.utils.wire_tensors import DType, decode
from logitsieve.v1 import decoder_pb2 as pb

NORMALIZER_NAMES: dict[int, str] = {code: name for name, code in NORMALIZER_CODES.items()}
SETS = ("banned", "allowed", "biased", "repeated")


def to_array(tensor: pb.Tensor, field: str, only: DType | None = None) -> np.ndarray:
    """A tensor, of the one dtype that is meant, as an array [rows, cols] over its bytes.

    InvalidRequest names `field`.
    """
    dtype, data = int(tensor.dtype), tensor.data  # read once: every reading copies the bytes
    if not dtype and not data:
        raise InvalidRequest(field, "nothing", "a tensor")
    if only is not None and dtype != int(only):
        raise InvalidRequest(f"{field}.dtype", dtype, f"{only.value} ({only.name})")
    array = decode(dtype, tensor.rows, tensor.cols, data, field)
    if only is DType.BOOL and array.view(np.uint8).max(initial=0) > 1:
        raise InvalidRequest(f"{field}.data", "other bytes", "bytes of 0 or 1")
    return array


def to_vector(tensor: pb.Tensor, field: str, dtype: DType) -> np.ndarray:
    """A tensor of one column as an array [rows]."""
    array = to_array(tensor, field, dtype)
    if array.shape[1] != 1:
        raise InvalidRequest(f"{field}.cols", array.shape[1], "1: a vector")
    return array[:, 0]


def vector_if_set(request: Any, field: str, dtype: DType) -> np.ndarray | None:
    """`to_vector` of a field of a request; None where it is not set."""
    return to_vector(getattr(request, field), field, dtype) if request.HasField(field) else None


def to_aim(target: pb.Target, normalizer: str = "") -> PointRequest:
    """With `normalizer` where it names none. InvalidRequest names the field with no such value."""
    if code := target.normalizer:
        normalizer = NORMALIZER_NAMES.get(code, str(code))
    point = target.WhichOneof("point")
    if point is None:
        return PointRequest(True, None, "", (), normalizer)
    if point == "head":
        head, knobs = target.head.name, target.head.knobs
        if head != AUTO and (head or knobs):
            return PointRequest(False, None, head, tuple(sorted(knobs.items())), normalizer)
        return PointRequest(
            True, asked_precision(head, dict(knobs), None, False), "", (), normalizer
        )
    precision = target.min_precision if point == "min_precision" else None
    return PointRequest(
        True, asked_precision("", None, precision, target.exact), "", (), normalizer
    )


def to_constraints(message: pb.Constraints, most_ids: int) -> Constraints:
    """InvalidRequest names the field at fault, or `constraints` if there are over `most_ids` ids.

    Whether the sets fit the rows of a request is left to `Constraints.for_rows`.
    """
    sets = {
        name: _to_sets(getattr(message, name), f"constraints.{name}")
        for name in SETS
        if message.HasField(name)
    }
    ids = sum(len(one.ids) for one in sets.values())
    if ids > most_ids:
        raise InvalidRequest("constraints", f"{ids} ids", f"at most {most_ids} in all")
    bias = None
    if message.HasField("bias"):
        bias = to_vector(message.bias, "constraints.bias", DType.FLOAT32)
    return Constraints(**sets, bias=bias, repetition_penalty=message.repetition_penalty or 1.0)


def _to_sets(message: pb.IdSets, field: str) -> IdSets:
    ids = np.empty(0, np.int32)
    if message.HasField("ids"):
        ids = to_vector(message.ids, f"{field}.ids", DType.INT32)
    return IdSets(to_vector(message.offsets, f"{field}.offsets", DType.INT32), ids)
