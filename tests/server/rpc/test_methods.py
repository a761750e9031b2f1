"""An RPC stands in each place that must know it: a missing one is named here."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from logitsieve.api.decoder import Decoder
from logitsieve.client import AsyncDecoderClient, AsyncDecodeStream, DecoderClient, DecodeStream
from logitsieve.server.rpc.methods import METHODS
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.rpcs import RPCS, Rpc
from tests.server.messages import DECODER, GOOD
from tests.server.rpc.test_codec import REPLIES
from tests.server.test_congruence import ASKS

DECODERS = [Decoder, DecoderClient, AsyncDecoderClient, DecodeStream, AsyncDecodeStream]


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

    def test_the_tests_ask_it(self, rpc: Rpc[Any]) -> None:
        assert rpc.name in GOOD
        assert rpc.name in DECODER
        assert rpc.field in REPLIES
        assert rpc.method in ASKS
