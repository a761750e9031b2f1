"""The client that is awaited: what it asks and answers is the other's."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest, ModelNotFound, Unavailable
from logitsieve.client import AsyncDecoderClient, DecoderClient
from logitsieve.client.connection import to_target
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from logitsieve.server import create_server
from tests.server.running import WAIT_S, config_for, write_model
from tests.synthetic import make_hidden

HIDDEN = make_hidden(4)
ASKS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("topk", (HIDDEN, 3), {"head": "screen", "knobs": {"probes": 2}, "normalizer": "exact"}),
    ("score", (HIDDEN, [1, 2, 3, 4]), {}),
    ("sample", (HIDDEN, 2), {"seeds": 5, "temperature": 0.5}),
    ("beam_step", (HIDDEN,), {"beams_in": 2, "beams_out": 3}),
]


def test_it_answers_as_in_process(tmp_path: Path, kernel_cache: Path) -> None:
    write_model(tmp_path)
    local = LocalDecoder(open_index(tmp_path / "demo" / "1", kernel_cache=kernel_cache))

    async def scene() -> None:
        server = create_server(config_for(tmp_path, kernel_cache=kernel_cache))
        await server.start()
        address = f"127.0.0.1:{server.port}"
        async with AsyncDecoderClient(address, timeout_s=WAIT_S) as client:
            asked = [getattr(client, name)(*args, **more) for name, args, more in ASKS]
            replies = await asyncio.gather(*asked)
            async with client.stream() as stream:
                on_stream = [getattr(stream, name)(*args, **more) for name, args, more in ASKS]
                replies += await asyncio.gather(*on_stream)
            assert [model.name for model in await client.models()] == ["demo"]
            assert (await client.model("demo")).vocab_size == 300
            with pytest.raises(ModelNotFound):
                await client.topk(HIDDEN, 3, model="other")
            with pytest.raises(InvalidRequest) as caught:
                await client.topk(HIDDEN, 301)
            assert caught.value.field == "k"
        await server.stop()
        for (name, args, more), reply in zip(ASKS * 2, replies, strict=True):
            expected = getattr(local, name)(*args, **more)
            for one, other in zip(reply[:-1], expected[:-1], strict=True):
                np.testing.assert_array_equal(one, other)
            np.testing.assert_array_equal(reply.answer.exact, expected.answer.exact)

    asyncio.run(scene())


def test_nobody_listens() -> None:
    async def scene() -> None:
        async with AsyncDecoderClient("127.0.0.1:1", timeout_s=1.0) as client:
            with pytest.raises(Unavailable):
                await client.topk(HIDDEN, 3)

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("localhost:1", "localhost:1"),
        (["localhost:1"], "localhost:1"),
        (["10.0.0.1:1", "10.0.0.2:2"], "ipv4:10.0.0.1:1,10.0.0.2:2"),
        (("[::1]:1", "[::2]:2"), "ipv6:[::1]:1,[::2]:2"),
    ],
)
def test_addresses(address: Any, target: str) -> None:
    assert to_target(address) == target


@pytest.mark.parametrize(
    "address", [[], ["a:1", "b:1"], ["10.0.0.1:1", "[::1]:1"], ["10.0.0.1", "10.0.0.2"]]
)
def test_addresses_that_are_no_list_of_servers(address: Any) -> None:
    with pytest.raises(InvalidRequest) as caught:
        DecoderClient(address)
    assert caught.value.field == "address"


@pytest.mark.parametrize("keepalive_s", [0, 9.9, -1, float("nan")])
def test_a_keepalive_that_servers_would_not_take(keepalive_s: float) -> None:
    with pytest.raises(InvalidRequest) as caught:
        DecoderClient("127.0.0.1:1", keepalive_s=keepalive_s)
    assert caught.value.field == "keepalive_s"
