import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from logitsieve.client.llamacpp import LlamaAttachment, LlamaContext, attach
from logitsieve.completions.app import Endpoint, Facts
from logitsieve.completions.decode_loop import DecodeLoop, steady_sequences
from logitsieve.completions.journal import Journal
from logitsieve.completions.lanes import Lanes
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from logitsieve.server.http.listener import Listener
from tests.client.test_llamacpp import write_gguf_index
from tests.llamacpp.small_model import CHAT, Make
from tests.server.running import Loop

NAME, WAIT_S = "small", 240.0  # seconds: a first answer compiles kernels


@pytest.fixture(scope="session")
def attached(
    make_gguf: Make, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LlamaAttachment]:
    path = make_gguf(head="Q8_0", chat_template=CHAT)
    with LlamaContext(path, sequences=3, positions=3 * 256, separate=True) as context:
        index = write_gguf_index(context.gguf, tmp_path_factory.mktemp("models") / NAME / "1")
        with attach(context, LocalDecoder(open_index(index)), head="sketch") as attached:
            yield attached


@dataclass
class Client:
    address: str

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        """Return the status and the JSON of a reply; `body` may be bytes."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} | headers
        return self.send("POST", path, content=data, headers=headers)

    def get(self, path: str, **headers: str) -> tuple[int, Any]:
        return self.send("GET", path, headers=headers)

    def send(self, method: str, path: str, **more: Any) -> tuple[int, Any]:
        reply = httpx2.request(method, self.address + path, **more, timeout=WAIT_S, verify=False)
        is_json = "json" in reply.headers["Content-Type"]
        return reply.status_code, reply.json() if is_json else reply.text

    def completion(self, **body: Any) -> dict[str, Any]:
        status, made = self.post("/v1/completions", body)
        assert status == 200, made
        return dict(made)

    def refused(self, path: str, body: Any) -> dict[str, Any]:
        status, made = self.post(path, body)
        return {"status": status, **made["error"]}


@contextmanager
def serving(
    loop: Loop,
    attached: LlamaAttachment,
    timeout_s: float = WAIT_S,
    waiting: int = 64,
    started: bool = True,
) -> Iterator[tuple[Client, DecodeLoop]]:
    widths = steady_sequences(attached.context)
    engine = DecodeLoop(attached, waiting=waiting, widths=widths, head_name=lambda: "sketch")
    lanes = Lanes(Journal(), stuck=lambda: None)
    endpoint = Endpoint(engine, Facts(NAME, lambda: "hash"), lanes, timeout_s=timeout_s)

    async def begin() -> tuple[Listener, int]:
        listener = Listener(endpoint.application(), reply_s=WAIT_S)
        return listener, await listener.start("127.0.0.1", 0)

    listener, port = loop.run(begin())
    if started:
        engine.start()
    try:
        yield Client(f"http://127.0.0.1:{port}"), engine
    finally:
        engine.close()
        loop.run(stopped(listener))


async def stopped(listener: Listener) -> None:
    await asyncio.sleep(0)
    await listener.stop()


@pytest.fixture(scope="module")
def client(loop: Loop, attached: LlamaAttachment) -> Iterator[Client]:
    with serving(loop, attached) as (client, _):
        yield client
