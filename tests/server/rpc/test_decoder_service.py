"""What the Decoder service says to requests that no client of ours would send."""

import re
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


def spec_with(**fields: Any) -> pb.ModelSpec:
    return pb.ModelSpec(model="demo", **fields)


# By the field that is named.
HIDDENS: dict[str, list[Any]] = {
    "hidden_states.dtype": [tensor(0, 1, 24), tensor(99, 1, 24), tensor(-1, 1, 24)],
    "hidden_states.data": [
        tensor(FLOAT32, 1, 24, bytes(95)),
        tensor(FLOAT32, 2, 24, bytes(96)),
        tensor(FLOAT32, UINT32_MAX, UINT32_MAX, bytes(96)),
    ],
    "hidden_states": [
        *(None, pb.Tensor(), tensor(FLOAT32, 0, 24), tensor(FLOAT32, 200, 0)),
        *(tensor(FLOAT32, UINT32_MAX, 0, b""), tensor(FLOAT32, 4, 23), tensor(FLOAT32, 24, 1)),
        *(tensor(INT32, 4, 24), tensor(BOOL, 4, 24, bytes(96)), tensor(FLOAT32, 257, 24)),
    ],
}
SPECS = [
    (spec_with(normalizer=77), "normalizer"),
    (spec_with(log_z_width=-0.1), "width"),
    (spec_with(log_z_width=float("nan")), "width"),
    (spec_with(log_z_width=0.1, normalizer=pb.NORMALIZER_SAMPLED), "width"),
    (spec_with(head=pb.Head(name="\u2603" * 9999)), "head"),
    (spec_with(head=pb.Head(name="AUTO", knobs={"probes": 1})), "knobs"),
    (spec_with(head=pb.Head(name="screen", knobs={"speed": 1})), "knobs.speed"),
    (spec_with(min_precision=0), "min_precision"),
    (spec_with(min_precision=1.5), "min_precision"),
    (spec_with(min_precision=float("nan")), "min_precision"),
    *((spec_with(max_error=value), "max_error") for value in (-1.0, 1.0, float("nan"))),
    (spec_with(max_error=0.1, exact=True), "max_error"),
    (spec_with(max_error=0.1, min_precision=0.5), "max_error"),
    (spec_with(max_error=0.1, head=pb.Head(name="screen")), "knobs.max_error"),
    (pb.ModelSpec(), "model"),
]


def sets(offsets: list[int], ids: list[int]) -> pb.IdSets:
    return pb.IdSets(
        offsets=put(pb.Tensor(), np.array(offsets, np.int32)),
        ids=put(pb.Tensor(), np.array(ids, np.int32)),
    )


ONES = b"\x01" * 160
EACH_ONE = sets([0, 1, 2, 3, 4], [1, 2, 3, 4])
ZEROS = tensor(INT32, 5)
NO_SETS: list[tuple[pb.IdSets, str]] = [
    (pb.IdSets(), "offsets"),
    (sets([0, 1], [1]), "offsets"),
    (sets([0, 2, 1, 3, 4], [1, 2, 3, 4]), "offsets"),
    (sets([1, 1, 2, 3, 4], [1, 2, 3, 4]), "offsets"),
    (sets([0, 1, 2, 3, 5], [1, 2, 3, 4]), "offsets"),
    (sets([0, 1, 2, 3, 4], [1, 2, 3, -4]), "ids"),
    (pb.IdSets(offsets=tensor(FLOAT32, 5)), "offsets.dtype"),
    (pb.IdSets(offsets=ZEROS, ids=tensor(UINT64, 1)), "ids.dtype"),
    (pb.IdSets(offsets=tensor(INT32, 1, 5)), "offsets.cols"),
]
CONSTRAINTS = [
    *((pb.Constraints(banned=one), f"constraints.banned.{field}") for one, field in NO_SETS),
    (pb.Constraints(allowed=NO_SETS[5][0]), "constraints.allowed.ids"),
    (pb.Constraints(repeated=sets([0, 1, 2, 3, 4], [1, 2, 3, 300])), "constraints.repeated"),
    (
        pb.Constraints(banned=sets([0] * 5, []), repeated=sets([0] * 4 + [1001], [1] * 1001)),
        "constraints",
    ),
    (pb.Constraints(mask=tensor(INT32, 4, 9, ONES[:-16])), "constraints.mask"),
    (pb.Constraints(mask=tensor(INT32, 2, 20, ONES)), "constraints.mask"),
    (pb.Constraints(mask=tensor(FLOAT32, 4, 10, ONES)), "constraints.mask"),
    (pb.Constraints(mask=tensor(INT32, 4, 10)), "constraints.mask"),
    (pb.Constraints(mask=tensor(INT32, 4, 300)), "constraints"),
    (pb.Constraints(bias=tensor(FLOAT32, 4)), "constraints.bias"),
    (pb.Constraints(biased=EACH_ONE), "constraints.bias"),
    (pb.Constraints(biased=EACH_ONE, bias=tensor(FLOAT32, 3)), "constraints.bias"),
    (pb.Constraints(biased=EACH_ONE, bias=tensor(FLOAT32, 4, 1, NAN * 4)), "constraints.bias"),
    (pb.Constraints(biased=EACH_ONE, bias=tensor(INT32, 4)), "constraints.bias.dtype"),
    *(
        (pb.Constraints(repetition_penalty=penalty), "constraints.repetition_penalty")
        for penalty in (-1, float("nan"), 1e300)
    ),
]
OWN: dict[str, dict[str, list[Any]]] = {
    "TopK": {"k": [0, 129, UINT32_MAX], "hidden_states[0]": [tensor(FLOAT32, 4, 24, NAN * 96)]},
    "BeamStep": {
        "beams_in": [0, 3, UINT32_MAX],
        "beams_out": [0, 129],
        "scores": [tensor(FLOAT32, 3), tensor(FLOAT32, 4, 1, NAN * 4), pb.Tensor()],
        "scores.dtype": [tensor(INT32, 4)],
        "scores.cols": [tensor(FLOAT32, 2, 2)],
        "lengths": [tensor(INT32, 5), tensor(INT32, 4, 1, b"\xff" * 16)],
        "lengths.dtype": [tensor(UINT64, 4, 1, bytes(32))],
        "finished": [tensor(BOOL, 3, 1, bytes(3))],
        "finished.data": [tensor(BOOL, 4, 1, bytes([0, 1, 2, 0]))],
        "finished.dtype": [tensor(INT32, 4)],
        "eos_ids": [[], [-1], [1] * 129],
        "length_penalty": [float("inf"), 11.0],
    },
    "Sample": {
        "samples": [0, 65],
        "seeds": [None, tensor(UINT64, 3, 1, bytes(24))],
        "seeds.dtype": [tensor(INT32, 4)],
        "seeds.cols": [tensor(UINT64, 2, 2, bytes(32))],
        "temperature": [-0.5, float("nan")],
        "top_k": [129, UINT32_MAX],
        "top_p": [-0.1, 1.1, float("nan")],
        "min_p": [2.0],
    },
    "Score": {
        "token_ids": [
            *(None, tensor(INT32, 3, 2), tensor(INT32, 4, 129), tensor(INT32, 4, 0)),
            tensor(INT32, 4, 2, b"\xff" * 32),
            put(pb.Tensor(), np.full((4, 1), 300, np.int32)),
        ],
        "token_ids.dtype": [tensor(FLOAT32, 4, 2)],
    },
}
SPOILED = [
    *(
        (rpc, changed(rpc, **{re.split(r"[.\[]", field)[0]: value}), field)
        for rpc in GOOD
        for field, values in (HIDDENS | OWN[rpc]).items()
        for value in values
    ),
    *((rpc, changed(rpc, model_spec=spec), field) for rpc in GOOD for spec, field in SPECS),
    *((rpc, changed(rpc, constraints=one), field) for rpc in GOOD for one, field in CONSTRAINTS),
    ("TopK", changed("TopK", model_spec=spec_with(min_precision=0.5), k=0), "k"),
]


@pytest.mark.parametrize("rpc", GOOD)
def test_good_requests_are_answered(server: Running, rpc: str) -> None:
    reply = server.raw(f"Decoder/{rpc}", GOOD[rpc].SerializeToString())
    answer = RESPONSES[rpc].FromString(reply).answer
    head = "full" if rpc in ("Sample", "BeamStep") else "screen"  # the default head
    assert (answer.model, answer.version, answer.head.name) == ("demo", "1", head)
    assert (answer.proven.rows, answer.proven.cols) == (4, 1)
    error = unreadable(server, rpc, b"\xff\xff\xff")
    assert error.field == "request"
    assert f"a serialized {rpc}Request" in error.message


@pytest.mark.parametrize(
    ("rpc", "request_", "field"), SPOILED, ids=[f"{rpc}-{field}" for rpc, _, field in SPOILED]
)
def test_a_bad_request_names_a_field(server: Running, rpc: str, request_: Any, field: str) -> None:
    error = unreadable(server, rpc, request_.SerializeToString())
    assert (error.code, error.field) == (Code.INVALID_ARGUMENT.value[0], field)
    assert error.message
    assert not error.incident


@pytest.mark.parametrize(
    "model", ["nothing", "demo@9", "demo:beta", "demo@3", "x" * 5000, "@", ":"]
)
def test_models_that_are_not_served(server: Running, model: str) -> None:
    for rpc in GOOD:
        request = changed(rpc, model_spec=pb.ModelSpec(model=model))
        error = unreadable(server, rpc, request.SerializeToString())
        assert (error.code, error.field) == (Code.NOT_FOUND.value[0], "model")


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
    huge = changed("TopK", hidden_states=tensor(FLOAT32, 1 << 19, 32))
    with pytest.raises(grpc.RpcError, match="RESOURCE_EXHAUSTED"):
        server.raw("Decoder/TopK", huge.SerializeToString())
    with pytest.raises(RequestTooLarge):
        server.client.topk(make_hidden(20_000), 1, model="demo")
    with pytest.raises(RequestTooLarge):  # over the client's own limit
        server.client.topk(make_hidden(700_000), 1, model="demo")
    assert_alive(server)
