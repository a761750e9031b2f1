"""The list of RPCs agrees with the messages and the services of decoder.proto, and with Decoder."""

from typing import Any

import pytest

from logitsieve.api.decoder import Decoder
from logitsieve.v1 import decoder_pb2 as pb
from logitsieve.v1.rpcs import RPCS, Rpc


def test_all_rpcs_but_the_stream_are_listed() -> None:
    methods = pb.DESCRIPTOR.services_by_name["Decoder"].methods_by_name
    assert {rpc.name for rpc in RPCS} | {"Decode"} == set(methods)


@pytest.mark.parametrize("rpc", RPCS, ids=lambda rpc: rpc.name)
def test_a_row_names_what_the_service_and_the_stream_have(rpc: Rpc[Any]) -> None:
    service = pb.DESCRIPTOR.services_by_name["Decoder"].methods_by_name[rpc.name]
    assert service.input_type is rpc.request.DESCRIPTOR
    assert service.output_type is rpc.response.DESCRIPTOR
    for message, kind in ((pb.DecodeRequest, rpc.request), (pb.DecodeResponse, rpc.response)):
        assert message.DESCRIPTOR.fields_by_name[rpc.field].message_type is kind.DESCRIPTOR
    assert hasattr(Decoder, rpc.method)


@pytest.mark.parametrize("rpc", RPCS, ids=lambda rpc: rpc.name)
def test_a_reply_has_the_arrays_of_its_response_and_the_answer_last(rpc: Rpc[Any]) -> None:
    *arrays, answer = rpc.reply._fields
    fields = rpc.response.DESCRIPTOR.fields_by_name
    assert answer == "answer"
    assert set(fields) == {*arrays, "answer"}
    assert fields["answer"].number == 1
