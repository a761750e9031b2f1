"""Calls from threads to event loops, which end before threads do."""

import asyncio
from collections.abc import Callable
from contextlib import suppress


def call_soon(
    loop: asyncio.AbstractEventLoop, call: Callable[..., object], *arguments: object
) -> None:
    """Make the call on the loop, from any thread; do nothing once the loop has ended."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(call, *arguments)
