"""Messages to a server with a model "demo": good ones of all RPCs, and how to spoil them."""

from queue import SimpleQueue
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.message import Message
from tritonclient.grpc import service_pb2 as kserve

from logitsieve.utils.wire_tensors import put
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.rpcs import RPCS
from tests.server.running import WAIT_S, Running
from tests.synthetic import make_hidden

Code = grpc.StatusCode
DOCUMENTED = {Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.UNIMPLEMENTED, Code.RESOURCE_EXHAUSTED}

ROWS = 4
SPEC = pb.ModelSpec(model="demo")
HIDDEN = put(pb.Tensor(), make_hidden(ROWS))
GOOD: dict[str, Any] = {
    "TopK": pb.TopKRequest(model_spec=SPEC, hidden_states=HIDDEN, k=3),
    "BeamStep": pb.BeamStepRequest(
        model_spec=SPEC,
        hidden_states=HIDDEN,
        beams_in=2,
        beams_out=3,
        scores=put(pb.Tensor(), np.array([0, -1, -2, -3], np.float32)),
        lengths=put(pb.Tensor(), np.array([1, 2, 3, 4], np.int32)),
        finished=put(pb.Tensor(), np.array([False, True, False, False])),
        eos_ids=[2, 5],
        length_penalty=0.6,
    ),
    "Sample": pb.SampleRequest(
        model_spec=SPEC,
        hidden_states=HIDDEN,
        samples=2,
        seeds=put(pb.Tensor(), np.arange(ROWS, dtype=np.uint64)),
        step=3,
        temperature=0.5,
        top_k=9,
        top_p=0.9,
        min_p=0.01,
    ),
    "Score": pb.ScoreRequest(
        model_spec=SPEC,
        hidden_states=HIDDEN,
        token_ids=put(pb.Tensor(), np.ones((ROWS, 2), np.int32)),
    ),
}
LARGE = make_hidden(64)  # more than 100 us of an uncalibrated model: it goes to the pool
LARGE_REQUEST = pb.TopKRequest(model_spec=SPEC, hidden_states=put(pb.Tensor(), LARGE), k=3)
RESPONSES = {rpc.name: rpc.response for rpc in RPCS}
FIELDS = {rpc.name: rpc.field for rpc in RPCS}


def changed(rpc: str, **fields: Any) -> Any:
    """A good request with other values; None takes a field away."""
    request = type(GOOD[rpc])()
    request.CopyFrom(GOOD[rpc])
    for name, value in fields.items():
        request.ClearField(name)
        if isinstance(value, Message):
            getattr(request, name).CopyFrom(value)
        elif isinstance(value, list):
            getattr(request, name).extend(value)
        elif value is not None:
            setattr(request, name, value)
    return request


def tensor(dtype: int, rows: int, cols: int = 1, data: bytes | None = None) -> pb.Tensor:
    """Zeros of 4 bytes unless something else is said."""
    data = bytes(4 * rows * cols) if data is None else data
    return pb.Tensor(dtype=dtype, rows=rows, cols=cols, data=data)  # type: ignore[arg-type]


def unreadable(server: Running, rpc: str, message: bytes) -> pb.Error:
    """The error that a server answers to these bytes, with its code as the call's own."""
    with pytest.raises(grpc.RpcError) as caught:
        server.raw(f"Decoder/{rpc}", message)
    error = error_of(caught.value)
    assert caught.value.code().value[0] == error.code
    return error


def error_of(failure: grpc.RpcError) -> pb.Error:
    return pb.Error.FromString(dict(failure.trailing_metadata() or ())["logitsieve-error-bin"])


def assert_alive(server: Running) -> None:
    response = server.raw("Decoder/TopK", GOOD["TopK"].SerializeToString())
    ids = pb.TopKResponse.FromString(response).ids
    assert (ids.rows, ids.cols) == (ROWS, 3)


def asked(rpc: str, request_id: int, request: Any = None, timeout_ms: int = 0) -> pb.DecodeRequest:
    """A message of a stream; a good request unless another is given."""
    one: dict[str, Any] = {FIELDS[rpc]: GOOD[rpc] if request is None else request}
    return pb.DecodeRequest(id=request_id, timeout_ms=timeout_ms, **one)


class RawStream:
    """A Decode stream that the server has taken or refused, and that anything can be sent on."""

    def __init__(self, channel: grpc.Channel, timeout: float = WAIT_S, headers: Any = None) -> None:
        decode = channel.stream_stream("/logitsieve.v1.Decoder/Decode")
        while True:
            self._outbox: SimpleQueue[bytes | None] = SimpleQueue()
            outgoing = iter(self._outbox.get, None)
            self.call = decode(outgoing, timeout=timeout, metadata=headers)
            self.call.initial_metadata()  # comes when the server takes the stream, or ends it
            if self.call.is_active() or self.call.code() is not Code.CANCELLED:
                return
            self._outbox.put(None)  # not taken within UNSEEN_S: the machine is busy

    def send(self, *messages: pb.DecodeRequest | bytes) -> None:
        for message in messages:
            self._outbox.put(message if isinstance(message, bytes) else message.SerializeToString())

    def receive(self) -> pb.DecodeResponse:
        return pb.DecodeResponse.FromString(next(self.call))

    def half_close(self) -> None:
        self._outbox.put(None)

    def rest(self) -> list[pb.DecodeResponse]:
        """The messages that come until the server ends the stream with OK."""
        return [pb.DecodeResponse.FromString(message) for message in self.call]

    def ask(self, message: pb.DecodeRequest | bytes) -> pb.DecodeResponse:
        self.send(message)
        return self.receive()


def typed(name: str, datatype: str, shape: list[int], **contents: list[Any]) -> Any:
    kind = kserve.ModelInferRequest.InferInputTensor
    held = kserve.InferTensorContents(**contents)
    return kind(name=name, datatype=datatype, shape=shape, contents=held)


HIDDEN_INPUT = typed(
    "hidden_states", "FP32", [4, 24], fp32_contents=np.float32(make_hidden(4)).ravel().tolist()
)
GOOD_INPUTS = [HIDDEN_INPUT, typed("k", "INT32", [1], int_contents=[3])]
