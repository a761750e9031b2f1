"""What the Decoder service says to requests that no client of ours would send."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logitsieve.client.codec import to_tensor
from logitsieve.types.errors import RequestTooLarge
from logitsieve.v1 import decoder_pb2 as pb
from tests.server.running import Running
from tests.synthetic import make_hidden

Code = grpc.StatusCode
DOCUMENTED = {Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.UNIMPLEMENTED, Code.RESOURCE_EXHAUSTED}
GOOD = pb.TopKRequest(target=pb.Target(model="demo"), hidden=to_tensor(make_hidden(2)), k=3)


def refusal(server: Running, method: str, message: bytes) -> tuple[grpc.StatusCode, pb.Error]:
    with pytest.raises(grpc.RpcError) as caught:
        server.raw(method, message)
    return caught.value.code(), trailer_of(caught.value)


def trailer_of(failure: grpc.RpcError) -> pb.Error:
    metadata = dict(failure.trailing_metadata() or ())
    return pb.Error.FromString(metadata["logitsieve-error-bin"])


def assert_alive(server: Running) -> None:
    response = pb.TopKResponse.FromString(server.raw("Decoder/TopK", GOOD.SerializeToString()))
    assert (response.ids.rows, response.ids.cols) == (2, 3)


def changed(**fields: Any) -> bytes:
    request = pb.TopKRequest()
    request.CopyFrom(GOOD)
    for name, value in fields.items():
        if isinstance(value, int):
            setattr(request, name, value)
        else:
            getattr(request, name).CopyFrom(value)
    return request.SerializeToString()


def tensor(**fields: Any) -> pb.Tensor:
    return pb.Tensor(**{"dtype": 1, "rows": 1, "cols": 24, "data": bytes(96), **fields})


def target_with(**fields: Any) -> pb.Target:
    return pb.Target(model="demo", **fields)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (b"\xff\xff\xff", "request"),
        (changed(hidden=tensor(dtype=0)), "hidden.dtype"),
        (changed(hidden=tensor(dtype=99)), "hidden.dtype"),
        (changed(hidden=tensor(dtype=-1)), "hidden.dtype"),
        (changed(hidden=pb.Tensor()), "hidden"),
        (pb.TopKRequest(target=GOOD.target, k=3).SerializeToString(), "hidden"),
        (changed(hidden=tensor(data=bytes(95))), "hidden.data"),
        (changed(hidden=tensor(rows=2)), "hidden.data"),
        (changed(hidden=tensor(rows=(1 << 32) - 1, cols=(1 << 32) - 1)), "hidden.data"),
        (changed(hidden=tensor(rows=0, data=b"")), "hidden"),
        (changed(hidden=tensor(cols=0, rows=200, data=b"")), "hidden"),
        (changed(hidden=tensor(rows=(1 << 32) - 1, cols=0, data=b"")), "hidden"),
        (changed(hidden=tensor(cols=23, data=bytes(92))), "hidden"),
        (changed(hidden=tensor(rows=24, cols=1)), "hidden"),
        (changed(hidden=tensor(dtype=4)), "hidden"),
        (changed(hidden=tensor(dtype=6, data=bytes(24))), "hidden"),
        (changed(hidden=tensor(data=b"\x00\x00\xc0\x7f" * 24)), "hidden[0]"),
        (changed(hidden=tensor(rows=257, data=bytes(257 * 96))), "hidden"),
        (changed(k=0), "k"),
        (changed(k=129), "k"),
        (changed(k=(1 << 32) - 1), "k"),
        (changed(target=pb.Target(model="demo", normalizer=pb.NORMALIZER_LOWRANK)), "normalizer"),
        (changed(target=target_with(normalizer=77)), "normalizer"),
        (changed(target=pb.Target(model="demo", head=pb.Head(name="\u2603" * 9999))), "head"),
        (changed(target=target_with(head=pb.Head(name="AUTO", knobs={"probes": 1}))), "knobs"),
        (changed(target=target_with(min_precision=0)), "min_precision"),
        (changed(target=target_with(min_precision=1.5)), "min_precision"),
        (changed(target=target_with(min_precision=float("nan"))), "min_precision"),
        (changed(target=target_with(min_precision=0.5), k=0), "k"),
        (changed(target=pb.Target()), "model"),
    ],
)
def test_a_bad_request_names_its_field(server: Running, message: bytes, field: str) -> None:
    code, error = refusal(server, "Decoder/TopK", message)
    assert (code, error.code) == (Code.INVALID_ARGUMENT, Code.INVALID_ARGUMENT.value[0])
    assert error.field == field
    assert error.message
    assert not error.incident
    assert_alive(server)


@pytest.mark.parametrize(
    "model", ["nothing", "demo@9", "demo:beta", "demo@3", "x" * 5000, "@", ":"]
)
def test_models_that_are_not_served(server: Running, model: str) -> None:
    code, error = refusal(server, "Decoder/TopK", changed(target=pb.Target(model=model)))
    assert (code, error.field) == (Code.NOT_FOUND, "model")


@pytest.mark.parametrize(
    ("message", "field"),
    [(changed(constraints=pb.Constraints(repetition_penalty=2)), "constraints")],
)
def test_fields_that_are_not_built(server: Running, message: bytes, field: str) -> None:
    code, error = refusal(server, "Decoder/TopK", message)
    assert (code, error.field) == (Code.UNIMPLEMENTED, field)
    assert field in error.message


@pytest.mark.parametrize("method", ["BeamStep", "Sample", "Score"])
def test_methods_that_are_not_built(server: Running, method: str) -> None:
    code, error = refusal(server, f"Decoder/{method}", b"")
    assert code is Code.UNIMPLEMENTED
    assert method in error.message


def test_the_stream_is_not_built(server: Running) -> None:
    stream = server.channel.stream_stream("/logitsieve.v1.Decoder/Decode")
    with pytest.raises(grpc.RpcError) as caught:
        next(stream(iter([b"anything"]), timeout=60))
    assert caught.value.code() is Code.UNIMPLEMENTED
    assert "Decode" in trailer_of(caught.value).message


def test_the_admin_service_is_not_on_the_public_port(server: Running) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        server.raw("Admin/Load", b"")
    assert caught.value.code() is Code.UNIMPLEMENTED


def test_points(server: Running) -> None:
    for target, head in (
        (pb.Target(model="demo"), "screen"),
        (pb.Target(model="demo", exact=True), "exact"),
        (pb.Target(model="demo", exact=False), "screen"),
        (pb.Target(model="demo", head=pb.Head(name="exact")), "exact"),
    ):
        reply = pb.TopKResponse.FromString(server.raw("Decoder/TopK", changed(target=target)))
        assert reply.answer.head.name == head
        assert (reply.answer.model, reply.answer.version) == ("demo", "1")


def test_a_message_of_64_megabytes(server: Running) -> None:
    huge = changed(hidden=tensor(rows=1 << 19, cols=32, data=bytes(64 << 20)))
    with pytest.raises(grpc.RpcError) as caught:
        server.raw("Decoder/TopK", huge)
    assert caught.value.code() is Code.RESOURCE_EXHAUSTED
    with pytest.raises(RequestTooLarge):
        server.client.topk(make_hidden(20_000), 1, model="demo")
    with pytest.raises(RequestTooLarge):  # over the client's own limit
        server.client.topk(make_hidden(700_000), 1, model="demo")
    assert_alive(server)


def assert_documented(server: Running, method: str, message: bytes) -> None:
    try:
        server.raw(method, message)
    except grpc.RpcError as error:
        failure = error
    else:
        return
    assert failure.code() in DOCUMENTED, failure
    assert trailer_of(failure).message


@settings(max_examples=150, deadline=None)
@given(
    method=st.sampled_from(["Decoder/TopK", "Decoder/Score", "Models/List", "Models/Get"]),
    message=st.binary(max_size=300),
)
def test_any_bytes(server: Running, method: str, message: bytes) -> None:
    assert_documented(server, method, message)


@settings(max_examples=150, deadline=None)
@given(
    place=st.integers(0, len(GOOD.SerializeToString()) - 1),
    byte=st.integers(0, 255),
    cut=st.booleans(),
)
def test_spoiled_bytes(server: Running, place: int, byte: int, cut: bool) -> None:
    good = GOOD.SerializeToString()
    assert_documented(
        server, "Decoder/TopK", good[:place] + bytes([byte]) + (b"" if cut else good[place + 1 :])
    )


UINT32 = st.integers(0, 5) | st.integers(0, (1 << 32) - 1) | st.just(24)
TENSORS = st.builds(
    pb.Tensor,
    dtype=st.integers(0, 8),
    rows=UINT32,
    cols=UINT32,
    data=st.binary(max_size=200) | st.just(bytes(96)) | st.just(b"\xff" * 96),
)
HEADS = st.builds(
    pb.Head,
    name=st.sampled_from(["", "exact", "screen", "AUTO"]) | st.text(max_size=5),
    knobs=st.dictionaries(st.sampled_from(["probes", "self", "name", "x"]), st.floats()),
)
TARGETS = st.builds(
    pb.Target,
    model=st.sampled_from(["", "demo", "demo@1", "demo:canary", "demo@3"]) | st.text(max_size=5),
    head=st.none() | HEADS,
    normalizer=st.integers(0, 7),
)


@settings(max_examples=200, deadline=None)
@given(
    request=st.builds(
        pb.TopKRequest, target=st.just(GOOD.target) | TARGETS, hidden=TENSORS, k=UINT32
    )
)
def test_any_fields(server: Running, request: pb.TopKRequest) -> None:
    assert_documented(server, "Decoder/TopK", request.SerializeToString())


def test_it_still_answers(server: Running) -> None:
    assert_alive(server)
