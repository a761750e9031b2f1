"""An engine that aborts: who hears of it, who does not, and what is asked of it again."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest

from logitsieve.api.errors import InvalidRequest, Unavailable
from logitsieve.completions.front import Front
from logitsieve.completions.journal import Journal
from logitsieve.completions.supervisor import Line
from logitsieve.completions.worker import keep_beating
from logitsieve.server.http.listener import Listener
from tests.completions import fake_engine
from tests.promlint import complaints
from tests.server.running import WAIT_S

ALONE, BOTH = "abort one", "abort one of both"


class Asking:
    def __init__(self, front: Front, client: httpx2.AsyncClient) -> None:
        self.front, self._client = front, client

    async def ask(self, prompt: str, **more: Any) -> tuple[int, Any]:
        reply = await self._client.post("/v1/completions", json={"prompt": prompt, **more})
        return reply.status_code, reply.text if more else reply.json()

    async def get(self, path: str) -> tuple[int, str]:
        reply = await self._client.get(path)
        return reply.status_code, reply.text


@asynccontextmanager
async def fronting(
    engine: Callable[[Line], None], first_s: float = 0.0, stuck_s: float = WAIT_S
) -> AsyncIterator[Asking]:
    front = Front(engine, timeout_s=WAIT_S, first_s=first_s, stuck_s=stuck_s)
    listener = Listener(front.application(local=True), reply_s=WAIT_S)
    port = await listener.start("127.0.0.1", 0)
    try:
        await front.supervisor.start()
        address = f"http://127.0.0.1:{port}"
        async with httpx2.AsyncClient(base_url=address, timeout=WAIT_S) as client:
            yield Asking(front, client)
    finally:
        await front.supervisor.stop()
        await listener.stop()


async def test_only_the_guilty_request_fails_and_it_is_refused_from_then_on(tmp_path: Path) -> None:
    async with fronting(partial(fake_engine.engine, tmp_path / "ended")) as asking:
        _, before = await asking.ask("hello")
        (waited, innocent), (status, told) = await asyncio.gather(
            asking.ask("wait"), asking.ask(ALONE)
        )
        assert (status, told["error"]["type"]) == (502, "server_error")
        assert "the engine ended" in told["error"]["message"]
        assert (waited, innocent["prompt"]) == (200, "wait")
        assert innocent["pid"] != before["pid"]  # asked again
        status, refused = await asking.ask(ALONE)
        assert (status, refused["error"]["param"]) == (400, "prompt")
        assert (await asking.ask("hello"))[0] == 200
        assert asking.front.supervisor.ends == 1
        assert await asking.get("/health") == (200, '{"status":"ok","engine_ends":1}')
        text = (await asking.get("/metrics"))[1]
        assert "fake 1\n" in text
        assert "logitsieve_completions_engine_ends_total 1.0" in text
        assert 'logitsieve_completions_requests_rejected_total{status="502"} 1.0' in text
        assert complaints(text) == ""


async def test_an_engine_that_is_stuck_is_ended_and_its_request_fails_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with fronting(partial(fake_engine.engine, tmp_path / "ended"), stuck_s=1.0) as asking:
        (waited, innocent), (status, told) = await asyncio.gather(
            asking.ask("wait"), asking.ask("hang")
        )
        assert (waited, innocent["prompt"]) == (200, "wait")
        assert (status, told["error"]["type"]) == (502, "server_error")
        assert (await asking.ask("hang"))[0] == 400
        assert asking.front.supervisor.ends == 1
    assert re.search(r'fake_engine\.py", line \d+ in _reply', capfd.readouterr().err)


async def test_it_beats_while_the_engine_takes_steps_or_has_nothing_to_do() -> None:
    engine: Any = SimpleNamespace(steps=0, running=[], waiting=[])
    journal = Journal()
    beating = asyncio.create_task(keep_beating(engine, journal, 0.0))

    async def beats() -> int:
        before = journal.beats
        for _ in range(20):
            await asyncio.sleep(0)
        return journal.beats - before

    assert await beats() > 1
    engine.running = ["a task"]
    await beats()
    assert await beats() == 0
    engine.steps += 1
    assert await beats() == 1
    engine.running = []
    assert await beats() > 1
    beating.cancel()


async def test_suspects_are_asked_again_one_by_one(tmp_path: Path) -> None:
    async with fronting(partial(fake_engine.engine, tmp_path / "ended")) as asking:
        innocent, guilty = await asyncio.gather(asking.ask("wait"), asking.ask(BOTH))
        assert (innocent[0], guilty[0]) == (200, 502)
        assert (await asking.ask("wait"))[0] == 200
        assert (await asking.ask(BOTH))[0] == 400
        assert asking.front.supervisor.ends == 2


async def test_a_request_is_judged_however_many_were_answered_meanwhile(tmp_path: Path) -> None:
    async with fronting(partial(fake_engine.engine, tmp_path / "ended")) as asking:
        innocent = asyncio.create_task(asking.ask("wait"))
        for _ in range(11):
            await asyncio.gather(*(asking.ask("hello") for _ in range(100)))
        assert (await asking.ask(BOTH))[0] == 502
        assert (await innocent)[0] == 200
        assert asking.front.supervisor.ends == 2  # two were suspected, and asked again alone


async def test_a_stream_that_has_begun_ends_by_an_error(tmp_path: Path) -> None:
    async with fronting(partial(fake_engine.engine, tmp_path / "ended")) as asking:
        assert await asking.ask("hello", stream=True) == (200, "data: first\n\ndata: [DONE]\n\n")
        status, text = await asking.ask("abort", stream=True)
        assert status == 200
        first, error, rest = text.split("\n\n")
        assert (first, rest) == ("data: first", "")
        assert "the engine ended" in error
        assert (await asking.ask("abort", stream=True))[0] == 400


async def test_an_engine_that_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="gguf: got nothing, allowed: a model"):
        async with fronting(fake_engine.refusing):
            pass
    with pytest.raises(Unavailable, match="ended by SIGABRT while it started"):
        async with fronting(fake_engine.crashing):
            pass


async def test_an_engine_that_ends_again_and_again_is_started_ever_later(tmp_path: Path) -> None:
    async with fronting(partial(fake_engine.engine, tmp_path / "ended"), WAIT_S) as asking:
        assert (await asking.ask("abort"))[0] == 502
        assert (await asking.ask("abort again"))[0] == 502  # it was started at once, now later
        status, text = await asking.get("/health")
        assert (status, text) == (503, '{"status":"starting","engine_ends":2}')
        assert "logitsieve_completions_engine_up 0.0" in (await asking.get("/metrics"))[1]
        late = asyncio.ensure_future(asking.ask("hello"))
        while not asking.front._waiting:
            await asyncio.sleep(0)
        await asking.front.supervisor.stop()
        status, told = await late
        assert (status, told["error"]["message"]) == (503, "the server is stopping")


async def test_bad_requests_reach_no_engine(tmp_path: Path) -> None:
    async with fronting(partial(fake_engine.engine, tmp_path / "ended")) as asking:
        reply = await asking._client.post("/v1/completions", content=b"{}")
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "content-type")
        reply = await asking._client.get("/v1/models", headers={"Host": "evil.example"})
        assert reply.status_code == 403
        headers = {"Content-Type": "application/json"}
        reply = await asking._client.post("/v1/completions", content=b"{", headers=headers)
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, "body")
