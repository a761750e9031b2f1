# /// script
# requires-python = ">=3.11"
# dependencies = ["logitsieve[server]"]
#
# [tool.uv.sources]
# logitsieve = { path = ".." }
# ///
"""A server, asked by a blocking client, over one stream, and by an asyncio client.

    python examples/server_and_clients.py models lm

`models` is a folder of <name>/<version> indexes. In production the server is a process of its own,
`logitsieve serve --model-repository models`, and the clients run anywhere.
"""

import asyncio
import sys
from pathlib import Path

import numpy as np

from logitsieve.client import AsyncDecoderClient, DecoderClient
from logitsieve.server import ServeConfig, create_server


def blocking(address: str, model: str) -> int:
    """One call with a row, then many over a stream, which costs less a call; returns D."""
    with DecoderClient(address) as decoder:
        dim = decoder.model(model).dim
        hidden_states = np.random.default_rng(0).standard_normal((8, dim))
        reply = decoder.topk(hidden_states, 3, model=model, head="sketch")
        print("one call ", reply.ids[:, 0].tolist(), "proven", bool(reply.answer.proven.all()))
        with decoder.stream() as stream:
            rows = [stream.topk(row, 3, model=model, head="sketch") for row in hidden_states]
        print("stream   ", [int(reply.ids[0, 0]) for reply in rows])
        draws = decoder.sample(
            hidden_states, 2, seeds=range(8), temperature=0.8, top_k=20, model=model
        )
        print("draws    ", draws.ids.tolist())
    return dim


async def awaited(address: str, model: str, dim: int) -> None:
    """Eight requests in flight at once over one channel."""
    hidden_states = np.random.default_rng(0).standard_normal((8, dim))
    async with AsyncDecoderClient(address) as decoder:
        calls = (decoder.topk(row, 3, model=model, head="sketch") for row in hidden_states)
        replies = await asyncio.gather(*calls)
    print("asyncio  ", [int(reply.ids[0, 0]) for reply in replies])


async def main(models: Path, model: str) -> None:
    """Serve on a free port, ask in three ways, stop."""
    server = create_server(ServeConfig(model_repository=models, port=0, http_port=0, admin=False))
    await server.start()
    address = f"localhost:{server.port}"
    try:
        dim = await asyncio.to_thread(blocking, address, model)
        await awaited(address, model, dim)
    finally:
        await server.stop()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
