"""The console of some indexes without a server beside it: `logitsieve console`."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence

from logitsieve.api.errors import InvalidRequest
from logitsieve.decoding import LocalDecoder
from logitsieve.index import Index
from logitsieve.server.config import ServeConfig
from logitsieve.server.console.access import ConsoleAccess
from logitsieve.server.console.api import Api
from logitsieve.server.console.app import application, console
from logitsieve.server.console.desk import Desk
from logitsieve.server.console.listener import Listener
from logitsieve.server.models.routes import Routes, Version
from logitsieve.server.models.served import Served
from logitsieve.server.rpc.ports import address, taken

HOST = "127.0.0.1"


def show(indexes: Sequence[Index], port: int, announce: Callable[[str], object]) -> None:
    """Serve the console on loopback until SIGTERM or SIGINT; `announce` gets its address.

    InvalidRequest where two indexes have one name and version, or the port cannot be bound.
    """
    asyncio.run(_show(routes_of(indexes), port, announce))


def routes_of(indexes: Sequence[Index]) -> Routes:
    routes = Routes()
    for index in indexes:
        if (index.name, index.version) in routes.by_key:
            got = f"{index.path}, another {index.name}@{index.version}"
            raise InvalidRequest("index", got, "indexes that differ in name or version")
        served = Served(LocalDecoder(index))
        routes = routes.with_version(Version(index.name, index.version, served))
    return routes


async def _show(routes: Routes, port: int, announce: Callable[[str], object]) -> None:
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stopping.set)
    desk = Desk(lambda: routes)
    api = Api(desk, ServeConfig(), registry=None, ready=lambda: True)
    app = console(api, ConsoleAccess(None, secure=False))
    listener = Listener(application(lambda: b"", lambda: True, app))
    try:
        bound = await listener.start(HOST, port)
    except OSError as error:
        raise taken("port", HOST, port, error) from error
    try:
        # In a thread: a browser that opens may take its time, and asks for pages meanwhile.
        await asyncio.to_thread(announce, f"http://{address(HOST, bound)}/")
        await stopping.wait()
    finally:
        await listener.stop()
        await asyncio.to_thread(desk.close)
