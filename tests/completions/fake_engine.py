"""An engine without a model, which ends as its prompts say."""

import asyncio
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from logitsieve.api.errors import InvalidRequest
from logitsieve.completions.journal import ENGINE, Ticket
from logitsieve.completions.supervisor import Line
from logitsieve.server.http.listener import Listener
from logitsieve.server.loops import end_after

WAIT_S = 60.0

if multiprocessing.parent_process() is not None:  # Ctrl-C while the engine's modules are imported
    os.kill(os.getpid(), signal.SIGINT)


def refusing(line: Line) -> None:
    raise InvalidRequest("gguf", "nothing", "a model")


def crashing(line: Line) -> None:
    os.abort()


def engine(ended: Path, line: Line) -> None:
    asyncio.run(_answer(ended, line))


async def _answer(ended: Path, line: Line) -> None:
    waiting = set[int]()
    reply = partial(_reply, ended, line, waiting)
    route = Route("/{path:path}", reply, methods=["GET", "POST"])
    listener = Listener(Starlette(routes=[route]), reply_s=WAIT_S)
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    tasks = set[asyncio.Task[None]]()
    line.say(None)
    beating = loop.create_task(_beat(line))
    gone = asyncio.ensure_future(
        line.connections(lambda one: tasks.add(loop.create_task(listener.take(one))))
    )
    stopped = asyncio.ensure_future(stopping.wait())
    await asyncio.wait((gone, stopped), return_when=asyncio.FIRST_COMPLETED)
    end_after(0.0, lambda seconds: 0)
    beating.cancel()
    await listener.stop()


async def _beat(line: Line) -> None:
    while True:
        line.journal.beat()
        await asyncio.sleep(0.01)


async def _reply(ended: Path, line: Line, waiting: set[int], request: Request) -> Response:
    if request.method == "GET":
        text = "# HELP fake Of this engine.\n# TYPE fake gauge\nfake 1\n"
        return Response(text, media_type="text/plain")
    body: dict[str, Any] = await request.json()
    prompt, number = body["prompt"], Ticket.of(request, WAIT_S).number
    if prompt == "wait":  # until an engine has ended
        waiting.add(number)
        while not ended.exists():
            await asyncio.sleep(0.01)
        waiting.discard(number)
    if body.get("stream"):
        return StreamingResponse(_events(line, prompt, number), media_type="text/event-stream")
    if prompt == "hang":
        ended.touch()
        with line.journal.doing(ENGINE, [number]):
            time.sleep(WAIT_S)
    if prompt.startswith("abort"):
        while "one" in prompt and not waiting and not ended.exists():
            await asyncio.sleep(0.01)
        ended.touch()
        with line.journal.doing(ENGINE, [number, *waiting] if "both" in prompt else [number]):
            os.abort()
    return JSONResponse({"prompt": prompt, "pid": os.getpid()})


async def _events(line: Line, prompt: str, number: int) -> AsyncIterator[str]:
    yield "data: first\n\n"
    await asyncio.sleep(0)
    if prompt == "abort":
        with line.journal.doing(ENGINE, [number]):
            os.abort()
    yield "data: [DONE]\n\n"


def stubborn(line: Line) -> None:
    """Answer nothing, and heed no signal, until the process of the port has gone."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    line.say(None)
    while line.control.recv(1):
        pass


def loading(line: Line) -> None:
    """Never be ready."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("an engine is here", file=sys.stderr, flush=True)
    while line.control.recv(1):
        pass
