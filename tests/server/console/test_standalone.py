from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from urllib.request import urlopen

import pytest

from logitsieve.api.errors import InvalidRequest
from logitsieve.index import open_index
from logitsieve.server.console.standalone import routes_of, show
from tests.server.running import WAIT_S


def test_it_answers_until_it_is_told_to_end(shown_models: Path, kernel_cache: Path) -> None:
    read: list[bytes] = []

    def announce(address: str) -> None:
        with urlopen(f"{address}api/overview", timeout=WAIT_S) as reply:
            read.append(reply.read())
        os.kill(os.getpid(), signal.SIGTERM)

    show([open_index(shown_models / "bare" / "1", kernel_cache=kernel_cache)], 0, announce)
    assert b'"model":"bare@1"' in read[0]


def test_two_indexes_of_one_name_and_version(shown_models: Path, kernel_cache: Path) -> None:
    index = open_index(shown_models / "bare" / "1", kernel_cache=kernel_cache)
    with pytest.raises(InvalidRequest, match="another bare@1"):
        routes_of([index, index])


def test_a_port_in_use(shown_models: Path, kernel_cache: Path) -> None:
    index = open_index(shown_models / "bare" / "1", kernel_cache=kernel_cache)
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(InvalidRequest) as caught:
        show([index], other.getsockname()[1], print)
    assert caught.value.field == "port"
