"""The sockets and the memory of this process."""

import socket
from collections.abc import Iterator
from contextlib import closing
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, PAGESIZE, mmap
from threading import Timer

import numpy as np
import pytest

from logitsieve.client import DecoderClient
from logitsieve.server.rpc.gate import HOLD_S
from logitsieve.server.rpc.own_process import MOST_DROPPED, OwnProcess, name_of
from tests.server.conftest import Serve
from tests.server.running import WAIT_S

LITTLE_S = 0.2  # until the kernel asks again


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server


def test_new_connections_are_refused_and_open_ones_stay(listening: socket.socket) -> None:
    where = listening.getsockname()
    with closing(OwnProcess({where[1]})) as own, socket.create_connection(where) as before:
        accepted, _ = listening.accept()
        own.refuse()
        with pytest.raises(TimeoutError):
            socket.create_connection(where, LITTLE_S)
        before.sendall(b"x")
        assert accepted.recv(1) == b"x"
        own.admit()
        socket.create_connection(where).close()
        accepted.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::", "::1"])
@pytest.mark.parametrize("others", [0, MOST_DROPPED // 2 - 1])
def test_addresses_that_are_connected_are_found_and_only_they_are_refused(
    host: str, others: int
) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family, dualstack_ipv6=host == "::") as listening:
        where = ("::1" if host == "::1" else "127.0.0.1", listening.getsockname()[1])
        with closing(OwnProcess({where[1]})) as own, socket.create_connection(where):
            connected = own.addresses()
            assert connected == {(0, 0) if host == "::1" else (0x7F000001,)}
            crowd = {(0x0A000000 + n,) for n in range(others)} | {(1, n) for n in range(others)}
            own.refuse(crowd | connected)
            with pytest.raises(TimeoutError):
                socket.create_connection(where, LITTLE_S)
            if host != "::1":
                with socket.create_connection(where, source_address=("127.0.0.2", 0)) as client:
                    first, second = (listening.accept()[0] for _ in range(2))
                    client.sendall(b"x")  # its packets are filtered, too
                    assert second.recv(1) == b"x"
                    first.close()
                    second.close()
            own.refuse(crowd)
            socket.create_connection(where).close()
            own.refuse({(n,) for n in range(MOST_DROPPED + 1)})
            with pytest.raises(TimeoutError):
                socket.create_connection(where, LITTLE_S)
            own.admit()
            socket.create_connection(where).close()


def test_a_client_waits_until_the_port_takes_connections_again(serve: Serve) -> None:
    options = [("grpc.use_local_subchannel_pool", 1)]
    with serve() as run, closing(OwnProcess({run.server.port})) as own:
        own.refuse()
        Timer(HOLD_S + 1, own.admit).start()
        with DecoderClient(run.address, timeout_s=WAIT_S, options=options) as client:
            assert client.models()


def test_who_listens_is_not_made_to_wait(listening: socket.socket) -> None:
    own = OwnProcess({listening.getsockname()[1]})
    with pytest.raises(BlockingIOError):
        listening.accept()
    own.close()
    assert listening.fileno() >= 0


def test_a_connection_is_found_and_cut(listening: socket.socket) -> None:
    where = listening.getsockname()
    with closing(OwnProcess({where[1]})) as own, socket.create_connection(where) as client:
        accepted, peer = listening.accept()
        (found,) = own.connections()
        assert (found.port, found.peer) == (where[1], name_of(peer))
        own.cut({found.peer})
        assert client.recv(1) == b""
        accepted.close()
        assert own.connections() == []


def test_memory_is_that_of_arrays_and_files_are_counted(listening: socket.socket) -> None:
    with closing(OwnProcess(())) as own:
        before, files = own.memory(), own.files()
        with mmap(-1, 1 << 28, MAP_PRIVATE | MAP_ANONYMOUS) as mapped:  # never memory freed before
            np.frombuffer(mapped, np.uint8)[::PAGESIZE] = 1
            assert own.memory() - before > len(mapped) // 2
        with socket.socket():
            assert own.files() > files
        own.trim()
