import asyncio
import os
import signal
import socket
from collections.abc import Callable

import uvloop

from logitsieve.client.llamacpp import LlamaAttachment, PromptLookup
from logitsieve.completions import CompletionsConfig
from logitsieve.completions.app import Endpoint, Facts
from logitsieve.completions.decode_loop import DecodeLoop, steady_sequences
from logitsieve.completions.journal import Journal
from logitsieve.completions.lanes import Lanes
from logitsieve.completions.supervisor import Line
from logitsieve.server.http.listener import PATIENCE_S, Listener
from logitsieve.server.loops import end_after, first_signal

LAST_REPLIES_S = 1.0
BEAT_S = 0.5


def answer(
    attached: LlamaAttachment,
    config: CompletionsConfig,
    name: str,
    line: Line,
    *,
    before_turn: Callable[[], object],
    head_name: Callable[[], str],
    index_hash: Callable[[], str],
) -> None:
    engine = DecodeLoop(
        attached,
        waiting=config.max_queue_size,
        widths=steady_sequences(attached.context),
        drafter=PromptLookup if config.lookup else None,
        watermark=config.watermark(),
        journal=line.journal,
        before_turn=before_turn,
        head_name=head_name,
    )
    lanes = Lanes(line.journal, stuck=os.abort)
    endpoint = Endpoint(engine, Facts(name, index_hash), lanes, timeout_s=config.timeout_s)
    uvloop.run(_answer(engine, endpoint, lanes, line, config))


async def _answer(
    engine: DecodeLoop, endpoint: Endpoint, lanes: Lanes, line: Line, config: CompletionsConfig
) -> None:
    stopping = first_signal((signal.SIGTERM,))
    listener = Listener(endpoint.application(), reply_s=config.timeout_s + PATIENCE_S)
    engine.start()
    loop, taken_over = asyncio.get_running_loop(), set[asyncio.Task[None]]()

    def take(connection: socket.socket) -> None:
        task = loop.create_task(listener.take(connection))
        taken_over.add(task)
        task.add_done_callback(taken_over.discard)

    beating = asyncio.ensure_future(keep_beating(engine, line.journal))
    connecting = asyncio.ensure_future(_follow(line, take))
    line.say(None)
    await stopping.wait()
    end_after(config.drain_s, lambda seconds: 0)
    engine.drain()
    until = loop.time() + config.drain_s
    while (engine.running or engine.waiting) and loop.time() < until:
        await asyncio.sleep(0.05)
    lanes.close()
    await asyncio.to_thread(engine.close)
    await listener.settle(LAST_REPLIES_S)
    await listener.stop()
    connecting.cancel()
    beating.cancel()


async def keep_beating(engine: DecodeLoop, journal: Journal, every_s: float = BEAT_S) -> None:
    """Beat while the event loop runs, and the engine takes steps or has nothing to do."""
    while True:
        steps = engine.steps
        journal.beat()
        while engine.steps == steps and (engine.running or engine.waiting):
            await asyncio.sleep(every_s)
        await asyncio.sleep(every_s)


async def _follow(line: Line, take: Callable[[socket.socket], None]) -> None:
    """Take connections, and end at once when the port's process does."""
    await line.connections(take)
    os.killpg(0, signal.SIGKILL)
