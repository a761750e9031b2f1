"""What the Decoder service says to requests that no client of ours would send."""

from typing import Any

import grpc
import numpy as np
import pytest

from logitsieve.api.errors import RequestTooLarge
from logitsieve.utils.wire_tensors import put
from logitsieve.v1 import decoder_pb2 as pb
from tests.server.messages import GOOD, RESPONSES, Code, assert_alive, changed, tensor, unreadable
from tests.server.running import Running
from tests.synthetic import make_hidden

FLOAT32, INT32, UINT64, BOOL = 1, 4, 5, 6
NAN = b"\x00\x00\xc0\x7f"
UINT32_MAX = (1 << 32) - 1


def target_with(**fields: Any) -> pb.Target:
    return pb.Target(model="demo", **fields)


HIDDENS = [
    (tensor(0, 1, 24), "hidden.dtype"),
    (tensor(99, 1, 24), "hidden.dtype"),
    (tensor(-1, 1, 24), "hidden.dtype"),
    (pb.Tensor(), "hidden"),
    (None, "hidden"),
    (tensor(FLOAT32, 1, 24, bytes(95)), "hidden.data"),
    (tensor(FLOAT32, 2, 24, bytes(96)), "hidden.data"),
    (tensor(FLOAT32, UINT32_MAX, UINT32_MAX, bytes(96)), "hidden.data"),
    (tensor(FLOAT32, 0, 24), "hidden"),
    (tensor(FLOAT32, 200, 0), "hidden"),
    (tensor(FLOAT32, UINT32_MAX, 0, b""), "hidden"),
    (tensor(FLOAT32, 4, 23), "hidden"),
    (tensor(FLOAT32, 24, 1), "hidden"),
    (tensor(INT32, 4, 24), "hidden"),
    (tensor(BOOL, 4, 24, bytes(96)), "hidden"),
    (tensor(FLOAT32, 257, 24), "hidden"),
]
TARGETS = [
    (target_with(normalizer=77), "normalizer"),
    (target_with(log_z_width=-0.1), "width"),
    (target_with(log_z_width=float("nan")), "width"),
    (target_with(log_z_width=0.1, normalizer=pb.NORMALIZER_SAMPLED), "width"),
    (target_with(head=pb.Head(name="\u2603" * 9999)), "head"),
    (target_with(head=pb.Head(name="AUTO", knobs={"probes": 1})), "knobs"),
    (target_with(head=pb.Head(name="screen", knobs={"speed": 1})), "knobs.speed"),
    (target_with(min_precision=0), "min_precision"),
    (target_with(min_precision=1.5), "min_precision"),
    (target_with(min_precision=float("nan")), "min_precision"),
    (pb.Target(), "model"),
]


def sets(offsets: list[int], ids: list[int]) -> pb.IdSets:
    return pb.IdSets(
        offsets=put(pb.Tensor(), np.array(offsets, np.int32)),
        ids=put(pb.Tensor(), np.array(ids, np.int32)),
    )


EACH_ONE = sets([0, 1, 2, 3, 4], [1, 2, 3, 4])
CONSTRAINTS = [
    (pb.Constraints(banned=pb.IdSets()), "constraints.banned.offsets"),
    (pb.Constraints(banned=sets([0, 1], [1])), "constraints.banned.offsets"),
    (pb.Constraints(banned=sets([0, 2, 1, 3, 4], [1, 2, 3, 4])), "constraints.banned.offsets"),
    (pb.Constraints(banned=sets([1, 1, 2, 3, 4], [1, 2, 3, 4])), "constraints.banned.offsets"),
    (pb.Constraints(allowed=sets([0, 1, 2, 3, 5], [1, 2, 3, 4])), "constraints.allowed.offsets"),
    (pb.Constraints(allowed=sets([0, 1, 2, 3, 4], [1, 2, 3, -4])), "constraints.allowed.ids"),
    (pb.Constraints(repeated=sets([0, 1, 2, 3, 4], [1, 2, 3, 300])), "constraints.repeated"),
    (
        pb.Constraints(banned=pb.IdSets(offsets=tensor(FLOAT32, 5))),
        "constraints.banned.offsets.dtype",
    ),
    (
        pb.Constraints(banned=pb.IdSets(offsets=tensor(INT32, 5), ids=tensor(UINT64, 1))),
        "constraints.banned.ids.dtype",
    ),
    (
        pb.Constraints(banned=pb.IdSets(offsets=tensor(INT32, 1, 5))),
        "constraints.banned.offsets.cols",
    ),
    (
        pb.Constraints(banned=sets([0] * 5, []), repeated=sets([0] * 4 + [1001], [1] * 1001)),
        "constraints",
    ),
    (pb.Constraints(bias=tensor(FLOAT32, 4)), "constraints.bias"),
    (pb.Constraints(biased=EACH_ONE), "constraints.bias"),
    (pb.Constraints(biased=EACH_ONE, bias=tensor(FLOAT32, 3)), "constraints.bias"),
    (pb.Constraints(biased=EACH_ONE, bias=tensor(FLOAT32, 4, 1, NAN * 4)), "constraints.bias"),
    (pb.Constraints(biased=EACH_ONE, bias=tensor(INT32, 4)), "constraints.bias.dtype"),
    (pb.Constraints(repetition_penalty=-1), "constraints.repetition_penalty"),
    (pb.Constraints(repetition_penalty=float("nan")), "constraints.repetition_penalty"),
    (pb.Constraints(repetition_penalty=1e300), "constraints.repetition_penalty"),
]
OWN: dict[str, list[tuple[dict[str, Any], str]]] = {
    "TopK": [
        ({"k": 0}, "k"),
        ({"k": 129}, "k"),
        ({"k": UINT32_MAX}, "k"),
        ({"target": target_with(min_precision=0.5), "k": 0}, "k"),
        ({"hidden": tensor(FLOAT32, 4, 24, NAN * 96)}, "hidden[0]"),
    ],
    "BeamStep": [
        ({"beams_in": 0}, "beams_in"),
        ({"beams_in": 3}, "beams_in"),
        ({"beams_in": UINT32_MAX}, "beams_in"),
        ({"beams_out": 0}, "beams_out"),
        ({"beams_out": 129}, "beams_out"),
        ({"scores": tensor(FLOAT32, 3)}, "scores"),
        ({"scores": tensor(INT32, 4)}, "scores.dtype"),
        ({"scores": tensor(FLOAT32, 2, 2)}, "scores.cols"),
        ({"scores": tensor(FLOAT32, 4, 1, NAN * 4)}, "scores"),
        ({"scores": pb.Tensor()}, "scores"),
        ({"lengths": tensor(INT32, 5)}, "lengths"),
        ({"lengths": tensor(UINT64, 4, 1, bytes(32))}, "lengths.dtype"),
        ({"lengths": tensor(INT32, 4, 1, b"\xff" * 16)}, "lengths"),
        ({"finished": tensor(BOOL, 4, 1, bytes([0, 1, 2, 0]))}, "finished.data"),
        ({"finished": tensor(BOOL, 3, 1, bytes(3))}, "finished"),
        ({"finished": tensor(INT32, 4)}, "finished.dtype"),
        ({"eos_ids": []}, "eos_ids"),
        ({"eos_ids": [-1]}, "eos_ids"),
        ({"eos_ids": [1] * 129}, "eos_ids"),
        ({"length_alpha": float("inf")}, "length_alpha"),
        ({"length_alpha": 11.0}, "length_alpha"),
    ],
    "Sample": [
        ({"samples": 0}, "samples"),
        ({"samples": 65}, "samples"),
        ({"seeds": None}, "seeds"),
        ({"seeds": tensor(UINT64, 3, 1, bytes(24))}, "seeds"),
        ({"seeds": tensor(INT32, 4)}, "seeds.dtype"),
        ({"seeds": tensor(UINT64, 2, 2, bytes(32))}, "seeds.cols"),
        ({"temperature": -0.5}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_k": 129}, "top_k"),
        ({"top_k": UINT32_MAX}, "top_k"),
        ({"top_p": -0.1}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_p": float("nan")}, "top_p"),
        ({"min_p": 2.0}, "min_p"),
    ],
    "Score": [
        ({"targets": None}, "targets"),
        ({"targets": tensor(INT32, 3, 2)}, "targets"),
        ({"targets": tensor(INT32, 4, 129)}, "targets"),
        ({"targets": tensor(INT32, 4, 0)}, "targets"),
        ({"targets": tensor(FLOAT32, 4, 2)}, "targets.dtype"),
        ({"targets": tensor(INT32, 4, 2, b"\xff" * 32)}, "targets"),
        ({"targets": put(pb.Tensor(), np.full((4, 1), 300, np.int32))}, "targets"),
    ],
}
SPOILED = [
    (rpc, request, field)
    for rpc in GOOD
    for request, field in [
        *((changed(rpc, hidden=hidden), field) for hidden, field in HIDDENS),
        *((changed(rpc, target=target), field) for target, field in TARGETS),
        *((changed(rpc, constraints=one), field) for one, field in CONSTRAINTS),
        *((changed(rpc, **fields), field) for fields, field in OWN[rpc]),
    ]
]


@pytest.mark.parametrize("rpc", GOOD)
def test_good_requests_are_answered(server: Running, rpc: str) -> None:
    reply = server.raw(f"Decoder/{rpc}", GOOD[rpc].SerializeToString())
    answer = RESPONSES[rpc].FromString(reply).answer
    head = "exact" if rpc == "Sample" else "screen"  # the default head; draws are proven
    assert (answer.model, answer.version, answer.head.name) == ("demo", "1", head)
    assert (answer.exact.rows, answer.exact.cols) == (4, 1)


@pytest.mark.parametrize(
    ("rpc", "request_", "field"), SPOILED, ids=[f"{rpc}-{field}" for rpc, _, field in SPOILED]
)
def test_a_bad_request_names_its_field(
    server: Running, rpc: str, request_: Any, field: str
) -> None:
    error = unreadable(server, rpc, request_.SerializeToString())
    assert (error.code, error.field) == (Code.INVALID_ARGUMENT.value[0], field)
    assert error.message
    assert not error.incident


@pytest.mark.parametrize("rpc", GOOD)
def test_bytes_that_are_no_message(server: Running, rpc: str) -> None:
    assert unreadable(server, rpc, b"\xff\xff\xff").field == "request"


@pytest.mark.parametrize(
    "model", ["nothing", "demo@9", "demo:beta", "demo@3", "x" * 5000, "@", ":"]
)
def test_models_that_are_not_served(server: Running, model: str) -> None:
    for rpc in GOOD:
        request = changed(rpc, target=pb.Target(model=model))
        error = unreadable(server, rpc, request.SerializeToString())
        assert (error.code, error.field) == (Code.NOT_FOUND.value[0], "model")


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
        request = changed("TopK", target=target).SerializeToString()
        reply = pb.TopKResponse.FromString(server.raw("Decoder/TopK", request))
        assert reply.answer.head.name == head


@pytest.mark.parametrize(
    ("rpc", "unset", "meant"),
    [
        ("Sample", {"temperature": None}, {"temperature": 1.0}),
        ("Sample", {"top_p": 0.0}, {"top_p": 1.0}),
        ("BeamStep", {"scores": None}, {"scores": tensor(FLOAT32, 4)}),
        ("BeamStep", {"lengths": None}, {"lengths": tensor(INT32, 4)}),
        ("BeamStep", {"finished": None}, {"finished": tensor(BOOL, 4, 1, bytes(4))}),
        ("TopK", {"constraints": pb.Constraints()}, {}),
        ("TopK", {"constraints": pb.Constraints(banned=pb.IdSets(offsets=tensor(INT32, 5)))}, {}),
        (
            "Score",
            {"constraints": pb.Constraints(repeated=EACH_ONE)},
            {"constraints": pb.Constraints(repeated=EACH_ONE, repetition_penalty=1)},
        ),
    ],
    ids=str,
)
def test_what_is_not_set_has_its_default(
    server: Running, rpc: str, unset: dict[str, Any], meant: dict[str, Any]
) -> None:
    replies = []
    for fields in (unset, meant):
        request = changed(rpc, **fields).SerializeToString()
        reply = RESPONSES[rpc].FromString(server.raw(f"Decoder/{rpc}", request))
        reply.ClearField("answer")
        replies.append(reply)
    assert replies[0] == replies[1]


def test_a_message_of_64_megabytes(server: Running) -> None:
    huge = changed("TopK", hidden=tensor(FLOAT32, 1 << 19, 32))
    with pytest.raises(grpc.RpcError) as caught:
        server.raw("Decoder/TopK", huge.SerializeToString())
    assert caught.value.code() is Code.RESOURCE_EXHAUSTED
    with pytest.raises(RequestTooLarge):
        server.client.topk(make_hidden(20_000), 1, model="demo")
    with pytest.raises(RequestTooLarge):  # over the client's own limit
        server.client.topk(make_hidden(700_000), 1, model="demo")
    assert_alive(server)
