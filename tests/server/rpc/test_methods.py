"""An RPC stands in each place that must know it: a missing one is named here."""

import asyncio
import inspect
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pytest

from logitsieve.api.decoder import Decoder
from logitsieve.api.errors import InvalidRequest
from logitsieve.client import AsyncDecoderClient, AsyncDecodeStream, DecoderClient, DecodeStream
from logitsieve.decoding import LocalDecoder
from logitsieve.decoding.engine import LocalEngine
from logitsieve.decoding.sharded import ShardedEngine
from logitsieve.gpu.gpu_engine import GpuEngine
from logitsieve.index import Index
from logitsieve.ray.remote import RayShardDecoder
from logitsieve.server import ServeConfig
from logitsieve.server.kserve.infer import KINDS
from logitsieve.server.rpc.methods import METHODS
from logitsieve.server.scheduling.executor import compute, joined
from logitsieve.server.scheduling.request import ALL, QueuedRequest, RunningMean
from logitsieve.utils.wire_tensors import put
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.rpcs import RPCS, Rpc
from tests.server.messages import GOOD, changed, tensor
from tests.server.rpc.test_codec import REPLIES
from tests.server.test_congruence import ASKS, assert_same
from tests.synthetic import make_hidden

DECODERS = [DecoderClient, AsyncDecoderClient, DecodeStream, AsyncDecodeStream]
ENGINES = [LocalEngine, ShardedEngine]

NOT_OF_SHARDS = {"beam_step"}  # ShardedEngine makes it of the shards' best ids and scores
NOT_OF_KSERVE = {"beam_step", "score"}


def test_the_list_is_that_of_the_contract() -> None:
    methods = pb.DESCRIPTOR.services_by_name["Decoder"].methods
    unary = {each.name: (each.input_type, each.output_type) for each in methods}
    unary.pop("Decode")
    assert unary == {rpc.name: (rpc.request.DESCRIPTOR, rpc.response.DESCRIPTOR) for rpc in RPCS}


@pytest.mark.parametrize("rows", [0, 9])
@pytest.mark.parametrize("rpc", RPCS, ids=lambda rpc: rpc.name)
def test_too_few_or_too_many_rows_are_refused_before_they_wait(rpc: Rpc[Any], rows: int) -> None:
    request = changed(rpc.name, hidden_states=tensor(1, rows, 24))
    with pytest.raises(InvalidRequest, match=r"1\.\.8 rows") as caught:
        METHODS[rpc.field].read(request, ServeConfig(max_rows=8), cast(Index, None))
    assert caught.value.field == "hidden_states"


ROWS = 12
EACH_TWO = pb.IdSets(
    offsets=put(pb.Tensor(), np.arange(0, 2 * ROWS + 1, 2, dtype=np.int32)),
    ids=put(pb.Tensor(), np.arange(2 * ROWS, dtype=np.int32)),
)
VECTORS = {
    "scores": put(pb.Tensor(), -np.arange(ROWS, dtype=np.float32)),
    "lengths": put(pb.Tensor(), np.arange(1, ROWS + 1, dtype=np.int32)),
    "finished": put(pb.Tensor(), np.arange(ROWS) % 3 == 0),
}
OF_ROWS: dict[str, dict[str, Any]] = {
    "TopK": {},
    "BeamStep": {"beams_in": 3, **VECTORS},
    "Sample": {"seeds": put(pb.Tensor(), np.array([7], np.uint64)), "top_k": 0, "top_p": None},
    "Score": {"token_ids": put(pb.Tensor(), np.arange(2 * ROWS, dtype=np.int32).reshape(ROWS, 2))},
}


@pytest.mark.parametrize("constrained", [False, True])
@pytest.mark.parametrize("head", ["full", "screen", "sketch", "svd"])
@pytest.mark.parametrize("rpc", RPCS, ids=lambda rpc: rpc.name)
def test_parts_make_whole(whole: LocalDecoder, rpc: Rpc[Any], head: str, constrained: bool) -> None:
    hidden_states = put(pb.Tensor(), make_hidden(ROWS, seed=4))
    request = changed(rpc.name, hidden_states=hidden_states, **OF_ROWS[rpc.name])
    if rpc.name == "Sample" and head == "sketch":
        request.replace = False
    if constrained:
        bias = put(pb.Tensor(), np.linspace(-1, 1, 2 * ROWS, dtype=np.float32))
        named: Any = {"banned": EACH_TWO, "repeated": EACH_TWO, "repetition_penalty": 1.5}
        if rpc.name != "BeamStep":
            named |= {"biased": EACH_TWO, "bias": bias}
        request.constraints.CopyFrom(pb.Constraints(**named))
    prepared = METHODS[rpc.field].read(request, ServeConfig(), whole.index)
    point = whole.engine(head, (), "")
    slices = [slice(*each) for each in pairwise([0, 3, 6, 12])]
    reply = joined([prepared.answer(point, part) for part in slices])
    assert_same(reply, prepared.answer(point, ALL))


async def test_a_mistake_in_a_later_part_names_the_row_of_the_request(whole: LocalDecoder) -> None:
    ids = np.arange(300, dtype=np.int32)
    offsets = np.array([0] * 11 + [300, 300], np.int32)
    sets = pb.IdSets(offsets=put(pb.Tensor(), offsets), ids=put(pb.Tensor(), ids))
    hidden_states = put(pb.Tensor(), make_hidden(ROWS))
    request = changed("Sample", hidden_states=hidden_states, **OF_ROWS["Sample"])
    request.constraints.CopyFrom(pb.Constraints(banned=sets))
    prepared = METHODS["sample"].read(request, ServeConfig(), whole.index)
    point, future = whole.engine("full", (), ""), asyncio.get_running_loop().create_future()
    queued = QueuedRequest(point, prepared, 1.0, RunningMean(), 0, None, future)
    queued.start, queued.stop = 8, 12
    (error,) = compute([queued])
    assert isinstance(error, InvalidRequest)
    assert "row 10" in str(error)


def in_oneof(message: Any, group: str, rpc: Rpc[Any], kind: Any) -> bool:
    """Tell if the message of a stream has a place for this RPC, of this kind."""
    fields = message.DESCRIPTOR.oneofs_by_name[group].fields
    return any(f.name == rpc.field and f.message_type is kind.DESCRIPTOR for f in fields)


@pytest.mark.parametrize("rpc", RPCS, ids=lambda rpc: rpc.name)
def test_every_place_of_an_rpc_is_filled(rpc: Rpc[Any]) -> None:
    signature = inspect.signature(getattr(Decoder, rpc.method))
    keywords = {"hidden_states", "constraints", "model", "head", "knobs", "normalizer"}
    fields = rpc.response.DESCRIPTOR.fields_by_name
    places = {
        "DecodeRequest": in_oneof(pb.DecodeRequest, "request", rpc, rpc.request),
        "DecodeResponse": in_oneof(pb.DecodeResponse, "reply", rpc, rpc.response),
        "its reply": {*fields} == {*rpc.reply._fields},
        "answer, last": rpc.reply._fields[-1] == "answer",
        "answer = 1": fields["answer"].number == 1,  # as an operating point's origin has it
        "METHODS": rpc.field in METHODS and METHODS[rpc.field].rpc is rpc,
        "its keywords": signature.parameters.keys() >= keywords,
        **{
            decoder.__name__: inspect.signature(getattr(decoder, rpc.method)) == signature
            for decoder in DECODERS
        },
        **{engine.__name__: f"_{rpc.method}" in vars(engine) for engine in ENGINES},
        # An inherited method would be given tensors of the GPU.
        "GpuEngine": "answer" in vars(GpuEngine),
        "RayShardDecoder": hasattr(RayShardDecoder, rpc.method)
        is (rpc.method not in NOT_OF_SHARDS),
        "KServe": (rpc.method in KINDS) is (rpc.method not in NOT_OF_KSERVE),
        "tests": rpc.name in GOOD and rpc.field in REPLIES and rpc.method in ASKS,
    }
    assert [place for place, filled in places.items() if not filled] == []
