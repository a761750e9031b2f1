import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import ModelNotFound
from logitsieve.client import AsyncDecoderClient, DecoderClient
from logitsieve.client.decoder_client import Limits, PointInfo, model_info
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from logitsieve.server import create_server
from logitsieve.v1 import decoder_pb2 as pb
from tests.refusals import refused
from tests.server.running import WAIT_S, config_for, write_model
from tests.synthetic import make_hidden


def message(version: int) -> pb.Model:
    head = pb.Head(name="screen", knobs={"probes": 3.0})
    return pb.Model(
        name="lm",
        version=str(version),
        state=pb.STATE_AVAILABLE,
        aliases=["stable"],
        vocabulary=300,
        dim=24,
        limits=pb.Limits(max_rows=5, max_k=4, max_samples=3, max_request_bytes=2),
        heads=["exact", "screen"],
        points=[pb.OperatingPoint(head=head, rows=8, us_per_row=1.5, precision_at={1: 0.99})],
    )


def test_a_message_as_a_plain_value() -> None:
    model = model_info(message(2))
    assert (model.name, model.version, model.state) == ("lm", "2", "available")
    assert (model.vocab_size, model.dim, model.aliases) == (300, 24, ("stable",))
    assert model.limits == Limits(
        max_rows=5, max_k=4, max_samples=3, max_request_bytes=2, max_constraint_ids=0
    )
    [point] = model.points
    assert point == PointInfo(
        head="screen",
        knobs={"probes": 3.0},
        rows=8,
        us_per_row=1.5,
        precision_at={1: 0.99},
        mass_kept=0.0,
        proven=False,
    )


def test_pages_are_asked_for_until_the_last() -> None:
    pages = {
        "": pb.ListModelsResponse(models=[message(1)], next_page_token="lm@1"),
        "lm@1": pb.ListModelsResponse(models=[message(2)]),
    }
    stub: Any = SimpleNamespace(List=lambda request, **told: pages[request.page_token])
    with DecoderClient("localhost:1") as client:
        client._models = stub
        assert [model.version for model in client.models()] == ["1", "2"]


@pytest.mark.parametrize("keepalive_s", [0, 9.9, -1, float("nan")])
def test_a_keepalive_that_servers_would_not_take(keepalive_s: float) -> None:
    with refused("keepalive_s"):
        DecoderClient("127.0.0.1:1", keepalive_s=keepalive_s)


HIDDEN = make_hidden(4)
ASKS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("topk", (HIDDEN, 3), {"head": "screen", "knobs": {"probes": 2}, "normalizer": "exact"}),
    ("score", (HIDDEN, [1, 2, 3, 4]), {}),
    ("sample", (HIDDEN, 2), {"seeds": 5, "temperature": 0.5}),
    ("beam_step", (HIDDEN,), {"beams_in": 2, "beams_out": 3}),
]


async def test_it_answers_as_in_process(tmp_path: Path, kernel_cache: Path) -> None:
    write_model(tmp_path)
    local = LocalDecoder(open_index(tmp_path / "demo" / "1", kernel_cache=kernel_cache))

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
        with refused("k"):
            await client.topk(HIDDEN, 301)
    await server.stop()
    for (name, args, more), reply in zip(ASKS * 2, replies, strict=True):
        expected = getattr(local, name)(*args, **more)
        for one, other in zip(reply[:-1], expected[:-1], strict=True):
            np.testing.assert_array_equal(one, other)
        np.testing.assert_array_equal(reply.answer.exact, expected.answer.exact)
