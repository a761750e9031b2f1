import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from logitsieve.api.errors import ModelNotFound
from logitsieve.client import AsyncDecoderClient, DecoderClient
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from logitsieve.server import create_server
from logitsieve.v1 import decoder_pb2 as pb
from tests.refusals import refused
from tests.server.running import WAIT_S, config_for, write_model
from tests.server.test_congruence import ASKS, assert_same
from tests.synthetic import make_hidden


def test_pages_are_asked_for_until_the_last() -> None:
    pages = {
        "": pb.ListModelsResponse(models=[pb.Model(version="1")], next_page_token="lm@1"),
        "lm@1": pb.ListModelsResponse(models=[pb.Model(version="2")]),
    }
    stub: Any = SimpleNamespace(List=lambda request, **told: pages[request.page_token])
    with DecoderClient("localhost:1") as client:
        client._models = stub
        assert [model.version for model in client.models()] == ["1", "2"]


HIDDEN = make_hidden(4)
OPTIONS = {"head": "screen", "knobs": {"probes": 2}, "normalizer": "full"}


async def test_it_answers_as_in_process(tmp_path: Path) -> None:
    write_model(tmp_path)
    local = LocalDecoder(open_index(tmp_path / "demo" / "1"))

    asks: list[Any] = list(ASKS.values())
    server = create_server(config_for(tmp_path))
    await server.start()
    address = f"127.0.0.1:{server.port}"
    async with AsyncDecoderClient(address, timeout_s=WAIT_S) as client:
        replies = await asyncio.gather(*(ask(client, HIDDEN, **OPTIONS) for ask in asks))
        async with client.stream() as stream:
            replies += await asyncio.gather(*(ask(stream, HIDDEN, **OPTIONS) for ask in asks))
        assert [model.name for model in await client.models()] == ["demo"]
        assert (await client.model("demo")).vocab_size == 300
        with pytest.raises(ModelNotFound):
            await client.topk(HIDDEN, 3, model="other")
        with refused("k"):
            await client.topk(HIDDEN, 301)
    await server.stop()
    for ask, reply in zip(2 * asks, replies, strict=True):
        assert_same(reply, ask(local, HIDDEN, **OPTIONS))
