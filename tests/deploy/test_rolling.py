"""Two servers are restarted one after the other, as docs/deployment.md says; no call fails."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from logitsieve.client import DecoderClient
from logitsieve.server import ServeConfig, Server, create_server
from tests.server.running import WAIT_S, Loop, config_for, lasting_port, write_model
from tests.synthetic import make_hidden

pytestmark = pytest.mark.system


@pytest.fixture
def loop() -> Iterator[Loop]:
    loop = Loop()
    yield loop
    loop.close()


async def started(config: ServeConfig) -> Server:
    server = create_server(config)
    await server.start()
    return server


async def restarted(server: Server, config: ServeConfig) -> Server:
    """Another one at the same address."""
    await server.stop()
    return await started(config)


@contextmanager
def two(loop: Loop, config: ServeConfig) -> Iterator[list[Server]]:
    """Two running servers; whichever are in the list at the end are stopped."""
    servers: list[Server] = []
    try:
        for _ in range(2):
            servers.append(loop.run(started(replace(config, port=lasting_port()))))
        yield servers
    finally:
        for server in servers:
            loop.run(server.stop())


def has_answered(server: Server) -> bool:
    return re.search(rb"logitsieve_rows_total\{[^}]*\} [1-9]", server.metrics.text()) is not None


def calling(servers: list[Server]) -> DecoderClient:
    ports = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    return DecoderClient(f"ipv4:{ports}", timeout_s=WAIT_S)


def test_no_call_fails_while_servers_are_restarted_in_turn(
    tmp_path: Path, kernel_cache: Path, loop: Loop
) -> None:
    write_model(tmp_path / "models")
    config = config_for(tmp_path / "models", kernel_cache=kernel_cache)
    hidden = make_hidden(2)
    with two(loop, config) as servers, calling(servers) as client:
        expected = client.topk(hidden, 5)

        def call_until(done: Callable[[], bool]) -> None:
            while not done():
                np.testing.assert_array_equal(client.topk(hidden, 5).ids, expected.ids)

        for i in [0, 1] * 3:
            server = servers[i]
            call_until(partial(has_answered, server))
            future = loop.start(restarted(server, replace(config, port=server.port)))
            call_until(future.done)
            servers[i] = future.result()
            # Clients find it again before the next one goes.
            call_until(partial(has_answered, servers[i]))
