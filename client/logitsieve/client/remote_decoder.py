"""Decoders that send requests to a server as messages; subclasses choose the transport."""

from abc import abstractmethod
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar, cast

import numpy as np

from logitsieve.api.constraints import SETS, Constraints
from logitsieve.api.decoder import Decoder, Engine
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.keywords import NORMALIZER_CODES, ModelSpec, Purpose, resolved_spec
from logitsieve.api.requests import Request
from logitsieve.api.results import ANSWER_COLUMNS, Answer, ArrayLike, RowRange
from logitsieve.client.connection import AsyncClosing
from logitsieve.utils.hidden import as_wire
from logitsieve.utils.wire_tensors import decode, put
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.rpcs import RPC_OF, Reply, Rpc

OPTIONAL = ("perturbed",)  # arrays that a reply may lack
NORMALIZER_NAMES = {code: name for name, code in NORMALIZER_CODES.items()}

R = TypeVar("R", bound=Reply)
P = ParamSpec("P")
T = TypeVar("T")
Awaited = Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]


def fill(
    request: Any, hidden_states: np.ndarray, constraints: Constraints | None, spec: ModelSpec
) -> None:
    put(request.hidden_states, hidden_states)
    if constraints is not None:
        _write_constraints(constraints.for_rows(len(hidden_states)), request.constraints)
    _write_spec(spec, request.model_spec)


def _write_spec(given: ModelSpec, spec: pb.ModelSpec) -> None:
    point = resolved_spec(given)
    spec.model = given.get("model", "")
    if given.get("exact"):
        spec.exact = True
    elif point.precision is not None:
        spec.min_precision = point.precision
    elif not point.automatic:
        spec.head.name = point.head
        spec.head.knobs.update(dict(point.knobs))
    if point.max_error is not None:
        spec.max_error = point.max_error
    if point.normalizer:
        if point.normalizer not in NORMALIZER_CODES:
            raise InvalidRequest("normalizer", point.normalizer, ", ".join(NORMALIZER_CODES))
        spec.normalizer = cast("pb.Normalizer", NORMALIZER_CODES[point.normalizer])
    if point.width < inf:
        spec.log_z_width = point.width


def _write_constraints(ready: Constraints, message: pb.Constraints) -> None:
    message.SetInParent()
    for name in SETS:
        if (sets := getattr(ready, name)) is not None:
            put(getattr(message, name).offsets, sets.offsets)
            put(getattr(message, name).ids, sets.ids)
    for name in ("bias", "mask"):
        if (array := getattr(ready, name)) is not None:
            put(getattr(message, name), np.asarray(array))
    message.repetition_penalty = ready.repetition_penalty


def to_reply(rpc: Rpc[R], response: Any) -> R:
    """Convert a response, which has the reply's fields by name."""
    make: Callable[..., R] = rpc.reply
    arrays = [
        _array(response, name) if name not in OPTIONAL or response.HasField(name) else None
        for name in rpc.reply._fields[:-1]
    ]
    return make(*arrays, _read_answer(response.answer))


def _array(message: Any, field: str) -> np.ndarray:
    tensor = getattr(message, field)
    return decode(tensor.dtype, tensor.rows, tensor.cols, tensor.data, field).copy()


def _read_answer(message: pb.Answer) -> Answer:
    columns: dict[str, Any] = {
        name: _array(message, name)[:, 0]
        for name in ANSWER_COLUMNS
        if message.HasField(name) or not name.startswith("log_z")
    }
    return Answer(
        model=message.model,
        version=message.version,
        digest=message.digest,
        head=message.head.name,
        max_error=message.max_error if message.HasField("max_error") else 1.0,
        knobs=dict(message.head.knobs),
        normalizer=NORMALIZER_NAMES.get(message.normalizer, ""),
        queue_ns=message.queue_ns,
        compute_ns=message.compute_ns,
        rows_missing=tuple(RowRange(each.first, each.rows) for each in message.rows_missing),
        **columns,
    )


class _RemoteEngine(NamedTuple):
    """Sends requests with one spec; `reply` returns the reply to a message, or a coroutine."""

    reply: Callable[[Rpc[Any], Any], Any]
    spec: ModelSpec

    def answer(self, request: Request[Any]) -> Any:
        rpc = RPC_OF[type(request)]
        message = rpc.request()
        for name, value in request.options.items():
            if isinstance(value, np.ndarray):
                put(getattr(message, name), value)
            elif isinstance(value, tuple):
                getattr(message, name).extend(value)
            else:
                setattr(message, name, value)
        fill(message, as_wire(request.hidden_states), request.constraints, self.spec)
        return self.reply(rpc, message)


class RemoteDecoder(Decoder):
    """A decoder on a server.

    Rows in float16 and bfloat16 are sent unchanged, others as float32. Seeds are drawn here, so
    that a retry draws the same ids. Methods also raise ModelNotFound and other ServiceErrors.
    """

    @abstractmethod
    def _reply(self, rpc: Rpc[R], request: Any) -> R:
        """Return the reply to a message, or raise one of our exceptions."""

    def _rows(self, hidden_states: ArrayLike) -> np.ndarray:
        return as_wire(hidden_states)

    def engine_for(self, spec: ModelSpec, rows: int, k: int, purpose: Purpose = "") -> Engine:
        return _RemoteEngine(self._reply, spec)


def awaited(method: Callable[Concatenate[Any, P], T]) -> Awaited[P, T]:
    """Reuse a blocking method in a class whose `_reply` and `_call` return coroutines."""
    return cast("Awaited[P, T]", method)


class AsyncRemoteDecoder(AsyncClosing):
    """A `RemoteDecoder` whose methods are coroutines."""

    topk = awaited(RemoteDecoder.topk)
    score = awaited(RemoteDecoder.score)
    sample = awaited(RemoteDecoder.sample)
    beam_step = awaited(RemoteDecoder.beam_step)
    _rows: Any = RemoteDecoder._rows
    engine_for: Any = RemoteDecoder.engine_for
    _answer: Any = RemoteDecoder._answer
    _most_ids = RemoteDecoder._most_ids

    @abstractmethod
    async def _reply(self, rpc: Rpc[R], request: Any) -> R:
        """Return the reply to a message, or raise one of our exceptions."""
