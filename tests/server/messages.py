"""Messages of all RPCs that a server with a model "demo" answers: good ones, and how to spoil them.

Strategies for fuzzing draw fields that fit the models of `fuzzed`, and others.
"""

from queue import SimpleQueue
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.message import Message
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as kserve

from logitsieve.utils.wire_tensors import put
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.rpcs import RPCS
from tests.server.running import WAIT_S, Running
from tests.synthetic import make_hidden

Code = grpc.StatusCode
DOCUMENTED = {Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.UNIMPLEMENTED, Code.RESOURCE_EXHAUSTED}

ROWS = 4
TARGET = pb.Target(model="demo")
HIDDEN = put(pb.Tensor(), make_hidden(ROWS))
GOOD: dict[str, Any] = {
    "TopK": pb.TopKRequest(target=TARGET, hidden=HIDDEN, k=3),
    "BeamStep": pb.BeamStepRequest(
        target=TARGET,
        hidden=HIDDEN,
        beams_in=2,
        beams_out=3,
        scores=put(pb.Tensor(), np.array([0, -1, -2, -3], np.float32)),
        lengths=put(pb.Tensor(), np.array([1, 2, 3, 4], np.int32)),
        finished=put(pb.Tensor(), np.array([False, True, False, False])),
        eos_ids=[2, 5],
        length_alpha=0.6,
    ),
    "Sample": pb.SampleRequest(
        target=TARGET,
        hidden=HIDDEN,
        samples=2,
        seeds=put(pb.Tensor(), np.arange(ROWS, dtype=np.uint64)),
        step=3,
        temperature=0.5,
        top_k=9,
        top_p=0.9,
        min_p=0.01,
    ),
    "Score": pb.ScoreRequest(
        target=TARGET, hidden=HIDDEN, targets=put(pb.Tensor(), np.ones((ROWS, 2), np.int32))
    ),
}
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
    """The trailer of a failed call."""
    return pb.Error.FromString(dict(failure.trailing_metadata() or ())["logitsieve-error-bin"])


def assert_alive(server: Running) -> None:
    """It answers a good request."""
    response = server.raw("Decoder/TopK", GOOD["TopK"].SerializeToString())
    ids = pb.TopKResponse.FromString(response).ids
    assert (ids.rows, ids.cols) == (ROWS, 3)


def asked(rpc: str, request_id: int, request: Any = None, timeout_ms: int = 0) -> pb.DecodeRequest:
    """A message of a stream; a good request unless another is given."""
    one: dict[str, Any] = {FIELDS[rpc]: GOOD[rpc] if request is None else request}
    return pb.DecodeRequest(id=request_id, timeout_ms=timeout_ms, **one)


class RawStream:
    """A Decode stream that anything can be sent on."""

    def __init__(self, server: Running, timeout: float = WAIT_S) -> None:
        self._outbox: SimpleQueue[bytes | None] = SimpleQueue()
        decode = server.channel.stream_stream("/logitsieve.v1.Decoder/Decode")
        self.call = decode(iter(self._outbox.get, None), timeout=timeout)

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


Strategy = st.SearchStrategy[Any]

UINT32_MAX = (1 << 32) - 1
UINT32 = st.integers(0, 5) | st.integers(0, UINT32_MAX) | st.just(24)
UINT64 = st.integers(0, (1 << 64) - 1)
NAMES = st.text(max_size=5)
NOT_FINITE = np.array([np.nan, np.inf, -np.inf], np.float32)


def spoiled_hidden(place: int, value: float) -> pb.Tensor:
    hidden = np.asarray(make_hidden(4), np.float32).copy()
    hidden.ravel()[place] = value
    return put(pb.Tensor(), hidden)


TENSORS = st.builds(
    pb.Tensor,
    dtype=st.integers(0, 8),
    rows=UINT32,
    cols=UINT32,
    data=st.binary(max_size=200) | st.just(bytes(96)) | st.just(b"\xff" * 96),
)
HIDDENS = (
    st.just(GOOD["TopK"].hidden)
    | st.builds(spoiled_hidden, st.integers(0, 95), st.sampled_from([*NOT_FINITE, 3e38]))
    | st.builds(put, st.builds(pb.Tensor), st.builds(make_hidden, st.sampled_from([1, 64, 300])))
    | TENSORS
)
HEADS = st.builds(
    pb.Head,
    name=st.sampled_from(["", "exact", "screen", "certified", "svd", "AUTO"]) | NAMES,
    knobs=st.dictionaries(st.sampled_from(["probes", "rank", "self", "name", "x"]), st.floats()),
)
MODELS = (
    st.sampled_from(["", "demo", "demo@1", "demo:canary", "demo@3", "other", "@", ":", "demo@1@1"])
    | NAMES
)
NORMALIZERS: Any = st.integers(0, 7)
TARGETS = (
    st.builds(pb.Target, model=MODELS, head=HEADS, normalizer=NORMALIZERS, log_z_width=st.floats())
    | st.builds(pb.Target, model=MODELS, min_precision=st.floats(), normalizer=NORMALIZERS)
    | st.builds(pb.Target, model=MODELS, exact=st.booleans(), normalizer=NORMALIZERS)
)
# Vectors for the four rows that are asked about, and others.
FITTING = st.builds(
    tensor,
    st.sampled_from([1, 4]),
    st.sampled_from([4, 5]),
    data=st.binary(min_size=16, max_size=16) | st.binary(min_size=20, max_size=20),
)
VECTORS = st.none() | FITTING | TENSORS
EACH_ONE = pb.IdSets(
    offsets=put(pb.Tensor(), np.arange(5, dtype=np.int32)),
    ids=put(pb.Tensor(), np.arange(1, 5, dtype=np.int32)),
)
SETS = st.none() | st.builds(pb.IdSets, offsets=VECTORS, ids=VECTORS) | st.just(EACH_ONE)
CONSTRAINTS = st.none() | st.builds(
    pb.Constraints,
    banned=SETS,
    allowed=SETS,
    biased=SETS,
    bias=VECTORS,
    repeated=SETS,
    repetition_penalty=st.floats(),
)
SHARED: dict[str, Strategy] = {
    "target": st.just(pb.Target(model="demo")) | TARGETS,
    "hidden": HIDDENS,
    "constraints": CONSTRAINTS,
}
DECODER: dict[str, Strategy] = {
    "TopK": st.builds(pb.TopKRequest, **SHARED, k=UINT32),
    "BeamStep": st.builds(
        pb.BeamStepRequest,
        **SHARED,
        scores=VECTORS,
        lengths=VECTORS,
        finished=VECTORS,
        beams_in=UINT32,
        beams_out=UINT32,
        eos_ids=st.lists(st.integers(-2, 400), max_size=3),
        length_alpha=st.floats(),
    ),
    "Sample": st.builds(
        pb.SampleRequest,
        **SHARED,
        samples=UINT32,
        seeds=st.just(GOOD["Sample"].seeds) | VECTORS,
        step=UINT64,
        temperature=st.none() | st.floats(),
        top_k=UINT32,
        top_p=st.floats(),
        min_p=st.floats(),
    ),
    "Score": st.builds(pb.ScoreRequest, **SHARED, targets=VECTORS),
}
DECODE: Strategy = st.one_of(
    [
        st.builds(
            pb.DecodeRequest,
            id=UINT64,
            timeout_ms=st.sampled_from([0, 0, 1, 1000, UINT32_MAX]),
            **{FIELDS[rpc]: requests},
        )
        for rpc, requests in DECODER.items()
    ]
)

NUMBERS = st.sampled_from(["1", "2", "3", "9", "", "0", "01", "-1"]) | NAMES
FOLDERS = st.sampled_from(["demo", "other", "", "..", "../demo", "demo/1"]) | NAMES
ALIASES = st.sampled_from(["", "stable", "canary", "UP", "a b", "x" * 65]) | NAMES
ADMIN: dict[str, Strategy] = {
    "Load": st.builds(pb.LoadRequest, name=FOLDERS, version=NUMBERS, alias=ALIASES),
    "Unload": st.builds(
        pb.UnloadRequest, name=FOLDERS, version=NUMBERS, drain_ms=st.sampled_from([0, UINT32_MAX])
    ),
    "SetAlias": st.builds(pb.SetAliasRequest, name=FOLDERS, version=NUMBERS, alias=ALIASES),
}
READ: dict[str, Strategy] = {
    "List": st.builds(
        pb.ListModelsRequest, page_size=UINT32, page_token=NAMES | st.sampled_from(["demo@1"])
    ),
    "Get": st.builds(pb.GetModelRequest, model=MODELS),
}

SIZES = st.integers(-1, 4) | st.just(24) | st.integers(-(1 << 63), (1 << 63) - 1)
FLOATS = st.floats(width=32)
CONTENTS = st.builds(
    kserve.InferTensorContents,
    fp32_contents=st.lists(FLOATS, max_size=4),
    int_contents=st.lists(st.integers(-(1 << 31), (1 << 31) - 1), max_size=2),
    uint64_contents=st.lists(UINT64, max_size=4),
    bool_contents=st.lists(st.booleans(), max_size=2),
)
VALUES = (
    st.builds(kserve.InferParameter, string_param=st.sampled_from(["sample", "exact"]) | NAMES)
    | st.builds(kserve.InferParameter, int64_param=st.integers(-1, 9) | SIZES)
    | st.builds(kserve.InferParameter, uint64_param=UINT64)
    | st.builds(kserve.InferParameter, double_param=st.floats())
    | st.builds(kserve.InferParameter, bool_param=st.booleans())
    | st.just(kserve.InferParameter())
)
TAKEN = "method head knobs.probes knobs. min_precision exact normalizer timeout step temperature"
PARAMETERS = st.dictionaries(
    st.sampled_from([*TAKEN.split(), "width", "top_k", "top_p", "min_p", "priority"]),
    VALUES,
    max_size=4,
)
ANY_INPUT = st.builds(
    kserve.ModelInferRequest.InferInputTensor,
    name=st.sampled_from(["hidden", "k", "samples", "seeds", "other"]),
    datatype=st.sampled_from(["FP32", "FP16", "BF16", "INT32", "UINT64", "BOOL", "BYTES", ""]),
    shape=st.lists(SIZES, max_size=3),
    contents=st.none() | CONTENTS,
    parameters=st.just({}) | PARAMETERS,
)


def typed(name: str, datatype: str, shape: list[int], **contents: list[Any]) -> Any:
    kind = kserve.ModelInferRequest.InferInputTensor
    held = kserve.InferTensorContents(**contents)
    return kind(name=name, datatype=datatype, shape=shape, contents=held)


HIDDEN_VALUES = np.asarray(make_hidden(4), np.float32).ravel().tolist()
GOOD_INPUTS = [
    typed("hidden", "FP32", [4, 24], fp32_contents=HIDDEN_VALUES),
    typed("k", "INT32", [1], int_contents=[3]),
]
DRAWN = [
    typed("hidden", "FP32", [4, 24], fp32_contents=HIDDEN_VALUES),
    typed("samples", "INT32", [1], int_contents=[2]),
    typed("seeds", "UINT64", [4], uint64_contents=[1, 2, 3, 4]),
]
ONE_NAMED = {"name": MODELS, "version": NUMBERS}
KSERVE: dict[str, Strategy] = {
    "ServerLive": st.just(kserve.ServerLiveRequest()),
    "ServerReady": st.just(kserve.ServerReadyRequest()),
    "ServerMetadata": st.just(kserve.ServerMetadataRequest()),
    "ModelReady": st.builds(kserve.ModelReadyRequest, **ONE_NAMED),
    "ModelMetadata": st.builds(kserve.ModelMetadataRequest, **ONE_NAMED),
    "ModelConfig": st.builds(kserve.ModelConfigRequest, **ONE_NAMED),
    "RepositoryIndex": st.builds(
        kserve.RepositoryIndexRequest, repository_name=st.just("") | NAMES, ready=st.booleans()
    ),
    "RepositoryModelLoad": st.builds(kserve.RepositoryModelLoadRequest, model_name=MODELS),
    "ModelInfer": st.builds(
        kserve.ModelInferRequest,
        model_name=st.just("demo") | MODELS,
        model_version=st.just("") | NUMBERS,
        id=NAMES,
        parameters=PARAMETERS,
        inputs=st.sampled_from([GOOD_INPUTS, DRAWN]) | st.lists(ANY_INPUT, max_size=3),
        outputs=st.lists(
            st.builds(
                kserve.ModelInferRequest.InferRequestedOutputTensor,
                name=st.sampled_from(["ids", "logits", "log_probs", "log_z", "other"]),
            ),
            max_size=2,
        ),
        raw_input_contents=st.just([]) | st.lists(st.binary(max_size=100), max_size=3),
    ),
}
KSERVE_ADMIN: dict[str, Strategy] = {
    "RepositoryModelLoad": st.builds(
        kserve.RepositoryModelLoadRequest,
        repository_name=st.just("") | NAMES,
        model_name=MODELS,
        parameters=st.just({})
        | st.just({"config": kserve.ModelRepositoryParameter(string_param="{}")}),
    ),
    "RepositoryModelUnload": st.builds(
        kserve.RepositoryModelUnloadRequest, repository_name=st.just("") | NAMES, model_name=MODELS
    ),
}
