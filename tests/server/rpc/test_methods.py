"""An RPC stands in each place that must know it: a missing one is named here."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from logitsieve.api.decoder import Decoder
from logitsieve.client import AsyncDecoderClient, AsyncDecodeStream, DecoderClient, DecodeStream
from logitsieve.decoding.engine import Engine
from logitsieve.decoding.sharded import ShardedEngine
from logitsieve.ray.serving.remote import RayShardDecoder
from logitsieve.server.kserve.infer import KINDS
from logitsieve.server.rpc.methods import METHODS
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.rpcs import RPCS, Rpc
from tests.server.messages import DECODER, GOOD
from tests.server.rpc.test_codec import REPLIES
from tests.server.test_congruence import ASKS

DECODERS = [Decoder, DecoderClient, AsyncDecoderClient, DecodeStream, AsyncDecodeStream]

NOT_OF_SHARDS = {"beam_step"}  # ShardedEngine makes it of the shards' best ids and scores
NOT_OF_KSERVE = {"beam_step", "score"}


def test_the_list_is_that_of_the_contract() -> None:
    methods = pb.DESCRIPTOR.services_by_name["Decoder"].methods
    unary = {each.name: (each.input_type, each.output_type) for each in methods}
    unary.pop("Decode")
    assert unary == {rpc.name: (rpc.request.DESCRIPTOR, rpc.response.DESCRIPTOR) for rpc in RPCS}


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
        assert rpc.name in DECODER
        assert rpc.field in REPLIES
        assert rpc.method in ASKS
