"""The process of the endpoint: listen, answer, drain."""

import asyncio
import logging
import signal
from collections.abc import Callable
from pathlib import Path

import uvloop

from logitsieve.client.llamacpp import LlamaAttachment, PromptLookup
from logitsieve.completions import CompletionsConfig
from logitsieve.completions.app import Endpoint, Facts
from logitsieve.completions.engine import Engine, steady_sequences
from logitsieve.server.http.listener import PATIENCE_S, Listener
from logitsieve.server.logs import configure, event
from logitsieve.server.rpc.ports import address, taken
from logitsieve.server.security import Tokens, http_tls, keep_renewing
from logitsieve.utils.environment import is_loopback

log = logging.getLogger(__name__)


class Endpoints:
    """A port over a context; `start` binds it."""

    def __init__(
        self,
        attached: LlamaAttachment,
        config: CompletionsConfig,
        *,
        before_turn: Callable[[], object],
        head_name: Callable[[], str],
        index_hash: Callable[[], str],
    ) -> None:
        self.config = config
        self.name = config.name or Path(attached.context.gguf.path).stem
        self.engine = Engine(
            attached,
            waiting=config.max_waiting,
            widths=steady_sequences(attached.context),
            drafter=PromptLookup if config.lookup else None,
            before_turn=before_turn,
            head_name=head_name,
        )
        self._tokens = None if config.tokens is None else Tokens(config.tokens)
        self._renewing: asyncio.Task[None] | None = None
        facts = Facts(self.name, index_hash)
        endpoint = Endpoint(self.engine, facts, tokens=self._tokens, request_s=config.request_s)
        local = is_loopback(config.host) and self._tokens is None
        self._listener = Listener(
            endpoint.application(local), reply_s=config.request_s + PATIENCE_S
        )
        self.address = ""

    async def start(self) -> None:
        """Listen; InvalidRequest names a bad port or files of TLS."""
        config = self.config
        tls = http_tls(config.tls_cert, config.tls_key)
        try:
            port = await self._listener.start(
                config.host, config.port, None if tls is None else tls.value
            )
        except OSError as error:
            raise taken("port", config.host, config.port, error) from error
        self.address = f"http{'s' if tls else ''}://{address(config.host, port)}"
        self.engine.start()
        self._renewing = asyncio.create_task(keep_renewing(self._tokens, tls))

    async def stop(self) -> None:
        """Take no new requests; give current ones `drain_s` seconds."""
        self.engine.drain()
        loop = asyncio.get_running_loop()
        until = loop.time() + self.config.drain_s
        while (self.engine.running or self.engine.waiting) and loop.time() < until:
            await asyncio.sleep(0.05)
        await asyncio.to_thread(self.engine.close)
        await asyncio.sleep(0)  # its last news reach the loop
        await self._listener.stop()
        if self._renewing is not None:
            self._renewing.cancel()


def serve(endpoints: Endpoints) -> None:
    """Answer until SIGTERM or SIGINT, then drain."""
    configure("text")
    uvloop.run(_serve(endpoints))


async def _serve(endpoints: Endpoints) -> None:
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stopping.set)
    await endpoints.start()
    where = f"{endpoints.name} at {endpoints.address}/v1"
    event(log, logging.INFO, "start", where, address=endpoints.address)
    try:
        await stopping.wait()
    finally:
        await endpoints.stop()
