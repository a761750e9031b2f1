"""Connections that are shut down by the name that gRPC gives them."""

import socket

import pytest

from logitsieve.server.rpc.own_process import cut, name_of


def test_the_named_connection_ends_and_others_stay() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pairs = []
        for _ in range(2):
            client = socket.create_connection(listener.getsockname())
            pairs.append((client, listener.accept()[0]))
        (cut_off, _), (stays, other) = pairs
        cut({name_of(cut_off.getsockname())})
        assert cut_off.recv(1) == b""
        other.send(b"x")
        assert stays.recv(1) == b"x"
        for pair in pairs:
            for one in pair:
                one.close()


@pytest.mark.parametrize(
    ("address", "name"),
    [
        (("10.0.0.7", 999), "ipv4:10.0.0.7:999"),
        (("::1", 999, 0, 0), "ipv6:%5B::1%5D:999"),
        (("::ffff:10.0.0.7", 999, 0, 0), "ipv4:10.0.0.7:999"),
    ],
)
def test_names_are_grpcs(address: object, name: str) -> None:
    assert name_of(address) == name
