"""The process with the endpoint's port. A child process runs the engine."""

import asyncio
import logging
from collections.abc import Callable
from functools import partial

import uvloop

from logitsieve.completions import CompletionsConfig
from logitsieve.completions.front import Front
from logitsieve.completions.supervisor import Line
from logitsieve.server.http.listener import PATIENCE_S, Listener
from logitsieve.server.logs import configure, event
from logitsieve.server.loops import end_after, first_signal
from logitsieve.server.rpc.ports import address, taken
from logitsieve.server.security import ApiKeys, http_tls, keep_renewing
from logitsieve.utils.environment import is_loopback

log = logging.getLogger(__name__)

LAST_REPLIES_S = 1.0


class Port:
    def __init__(self, config: CompletionsConfig, engine: Callable[[Line], None]) -> None:
        self.config = config
        self._api_keys = None if config.api_key_file is None else ApiKeys(config.api_key_file)
        self.front = Front(
            engine,
            api_keys=self._api_keys,
            timeout_s=config.timeout_s,
            most=config.max_queue_size,
            stuck_s=config.stuck_s,
        )
        local = is_loopback(config.host) and self._api_keys is None
        # If the engine ends, a request gets its full time once more.
        reply_s = 2 * config.timeout_s + PATIENCE_S
        self._listener = Listener(self.front.application(local), reply_s=reply_s)
        self._renewing: asyncio.Task[None] | None = None
        self.address = ""

    async def start(self) -> None:
        """Listen, and wait for the engine. InvalidRequest names a bad port or TLS file."""
        config = self.config
        tls = http_tls(config.tls_cert, config.tls_key)
        try:
            port = await self._listener.start(
                config.host, config.port, None if tls is None else tls.value
            )
        except OSError as error:
            raise taken("port", config.host, config.port, error) from error
        self.address = f"http{'s' if tls else ''}://{address(config.host, port)}"
        self._renewing = asyncio.create_task(keep_renewing(self._api_keys, tls))
        await self.front.supervisor.start()

    async def stop(self) -> None:
        await self.front.supervisor.stop()
        await self._listener.settle(LAST_REPLIES_S)
        await self._listener.stop()
        if self._renewing is not None:
            self._renewing.cancel()


def serve(config: CompletionsConfig, name: str, engine: Callable[[Line], None]) -> None:
    """Answer until SIGTERM, SIGINT or SIGHUP, then drain. Raises what the first `engine` raises."""
    configure("text")
    uvloop.run(_serve(config, name, engine))


async def _serve(config: CompletionsConfig, name: str, engine: Callable[[Line], None]) -> None:
    stopping = first_signal()
    port = Port(config, engine)
    started = asyncio.ensure_future(port.start())
    stopped = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait((started, stopped), return_when=asyncio.FIRST_COMPLETED)
        if started.done():
            await started
            where = f"{name} at {port.address}/v1"
            event(log, logging.INFO, "start", where, address=port.address)
            await stopped
    finally:
        if stopping.is_set():
            end_after(config.drain_s, partial(_cut_short, port))
        started.cancel()
        await port.stop()


def _cut_short(port: Port, seconds: float) -> int:
    port.front.supervisor.kill()
    message = f"ended: something still ran {seconds:g} s after the signal"
    event(log, logging.WARNING, "cut_short", message, seconds=seconds)
    return 0
