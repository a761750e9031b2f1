import asyncio
import faulthandler
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from threading import Timer

SIGNALS = signal.SIGTERM, signal.SIGINT, signal.SIGHUP
LAST_S = 3.0  # after the time to drain, the process ends even if something still runs


def call_soon(
    loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: object
) -> None:
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call, *arguments)


def first_signal(names: Sequence[signal.Signals] = SIGNALS) -> asyncio.Event:
    """Return an event that the first of these signals sets, on the running loop.

    After it, signals have their default effect. From this call on, crashes leave a traceback.
    """
    faulthandler.enable(sys.__stderr__ or sys.stderr)
    loop, came = asyncio.get_running_loop(), asyncio.Event()

    def stop() -> None:
        for name in names:
            loop.remove_signal_handler(name)
            signal.signal(name, signal.SIG_DFL)
        came.set()

    for name in names:
        loop.add_signal_handler(name, stop)
    return came


def end_after(drain_s: float, last: Callable[[float], int]) -> None:
    """End the process after LAST_S + `drain_s`; `last` gets this time and returns the exit code."""
    seconds = LAST_S + drain_s
    timer = Timer(seconds, lambda: os._exit(last(seconds)))
    timer.daemon = True
    timer.start()
