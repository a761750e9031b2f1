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
from logitsieve.decoding.engine import Engine
from logitsieve.decoding.sharded import ShardedEngine
from logitsieve.index import Index, open_index
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
from tests.server.running import write_whole
from tests.server.test_congruence import ASKS
from tests.synthetic import make_hidden

DECODERS = [Decoder, DecoderClient, AsyncDecoderClient, DecodeStream, AsyncDecodeStream]

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
    request = changed(rpc.name, hidden=tensor(1, rows, 24))
    with pytest.raises(InvalidRequest, match=r"1\.\.8 rows") as caught:
        METHODS[rpc.field].read(request, ServeConfig(max_rows=8), cast(Index, None))
    assert caught.value.field == "hidden"


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
    "Score": {"targets": put(pb.Tensor(), np.arange(2 * ROWS, dtype=np.int32).reshape(ROWS, 2))},
}


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> LocalDecoder:
    return LocalDecoder(open_index(write_whole(tmp_path_factory.mktemp("models"), "demo")))


@pytest.mark.parametrize("constrained", [False, True])
@pytest.mark.parametrize("head", ["exact", "screen", "certified", "svd"])
@pytest.mark.parametrize("rpc", RPCS, ids=lambda rpc: rpc.name)
def test_parts_joined_are_the_whole(
    decoder: LocalDecoder, rpc: Rpc[Any], head: str, constrained: bool
) -> None:
    hidden = put(pb.Tensor(), make_hidden(ROWS, seed=4))
    request = changed(rpc.name, hidden=hidden, **OF_ROWS[rpc.name])
    if constrained:
        bias = put(pb.Tensor(), np.linspace(-1, 1, 2 * ROWS, dtype=np.float32))
        named: Any = {"banned": EACH_TWO, "repeated": EACH_TWO, "repetition_penalty": 1.5}
        if rpc.name != "BeamStep":
            named |= {"biased": EACH_TWO, "bias": bias}
        request.constraints.CopyFrom(pb.Constraints(**named))
    prepared = METHODS[rpc.field].read(request, ServeConfig(), decoder.index)
    point = decoder.engine(head, (), "")
    whole = prepared.compute(point, ALL)
    ends = [0, 3, 6, 12]
    slices = [slice(*each) for each in pairwise(ends)]
    reply = joined([prepared.compute(point, part) for part in slices])
    for one, other in ((reply[:-1], whole[:-1]), (reply.answer, whole.answer)):
        assert len(one) == len(other)
    for name in (name for name in whole._fields if name != "answer"):
        np.testing.assert_array_equal(getattr(reply, name), getattr(whole, name))
    for name in (name for name in whole.answer._fields if name != "compute_ns"):
        np.testing.assert_array_equal(getattr(reply.answer, name), getattr(whole.answer, name))


async def test_a_mistake_in_a_later_part_is_named_by_the_row_of_the_request(
    decoder: LocalDecoder,
) -> None:
    ids = np.arange(300, dtype=np.int32)
    offsets = np.array([0] * 11 + [300, 300], np.int32)
    sets = pb.IdSets(offsets=put(pb.Tensor(), offsets), ids=put(pb.Tensor(), ids))
    hidden = put(pb.Tensor(), make_hidden(ROWS))
    request = changed("Sample", hidden=hidden, **OF_ROWS["Sample"])
    request.constraints.CopyFrom(pb.Constraints(banned=sets))
    prepared = METHODS["sample"].read(request, ServeConfig(), decoder.index)
    point, future = decoder.engine("exact", (), ""), asyncio.get_running_loop().create_future()
    queued = QueuedRequest(point, prepared, 1.0, RunningMean(), 0, None, future)
    queued.start, queued.stop = 8, 12
    (error,) = compute([queued])
    assert isinstance(error, InvalidRequest)
    assert "row 10" in str(error)


@pytest.mark.parametrize("rpc", RPCS, ids=lambda rpc: rpc.name)
class TestEach:
    def test_it_has_its_place_in_the_messages_of_a_stream(self, rpc: Rpc[Any]) -> None:
        request = pb.DecodeRequest.DESCRIPTOR.oneofs_by_name["request"].fields
        reply = pb.DecodeResponse.DESCRIPTOR.oneofs_by_name["reply"].fields
        assert rpc.request.DESCRIPTOR in [f.message_type for f in request if f.name == rpc.field]
        assert rpc.response.DESCRIPTOR in [f.message_type for f in reply if f.name == rpc.field]

    def test_its_response_holds_its_reply(self, rpc: Rpc[Any]) -> None:
        fields = rpc.response.DESCRIPTOR.fields_by_name
        assert {*fields} == {*rpc.reply._fields}
        assert rpc.reply._fields[-1] == "answer"
        assert fields["answer"].number == 1  # as an operating point's origin has it

    def test_the_server_reads_it(self, rpc: Rpc[Any]) -> None:
        assert METHODS[rpc.field].rpc is rpc

    @pytest.mark.parametrize("decoder", DECODERS)
    def test_a_decoder_has_it_with_its_keywords(self, rpc: Rpc[Any], decoder: type) -> None:
        shown = inspect.signature(getattr(decoder, rpc.method)).parameters
        assert shown.keys() >= {"hidden", "constraints", "model", "head", "knobs", "normalizer"}
        assert shown == inspect.signature(getattr(Decoder, rpc.method)).parameters

    @pytest.mark.parametrize("engine", [Engine, ShardedEngine])
    def test_an_engine_computes_it(self, rpc: Rpc[Any], engine: type) -> None:
        assert callable(getattr(engine, rpc.method, None))

    def test_the_engine_of_a_gpu_computes_it_itself(self, rpc: Rpc[Any]) -> None:
        """An inherited method would be given tensors of the GPU."""
        pytest.importorskip("torch")
        from logitsieve.gpu.gpu_engine import GpuEngine

        assert rpc.method in vars(GpuEngine)

    def test_replicas_of_a_shard_are_asked_for_it_unless_they_need_not(self, rpc: Rpc[Any]) -> None:
        assert hasattr(RayShardDecoder, rpc.method) is (rpc.method not in NOT_OF_SHARDS)

    def test_kserve_has_it_unless_it_is_left_out(self, rpc: Rpc[Any]) -> None:
        assert (rpc.method in KINDS) is (rpc.method not in NOT_OF_KSERVE)

    def test_the_tests_ask_it(self, rpc: Rpc[Any]) -> None:
        assert rpc.name in GOOD
        assert rpc.field in REPLIES
        assert rpc.method in ASKS
