"""Bodies of requests to a port: limits of their bytes, together and by client, and of seconds."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.exceptions import HTTPException
from starlette.requests import Request

from logitsieve.api.errors import Overloaded, RequestTooLarge, Unavailable

PART = 1 << 16  # bytes that must come within the patience; the first ones are not counted
MOST, SHARE = 64 << 20, 32 << 20  # bytes of all bodies together, and of one address
RETRY_S = 1.0
CLOSE = {"Connection": "close"}


class Bodies:
    """Counts the bodies that a port reads and keeps, without the first part of each.

    `bytes` are those of all.
    """

    def __init__(self, patience_s: float, most: int = MOST, share: int = SHARE) -> None:
        self._patience_s, self._most, self._share = patience_s, most, share
        self._held = Counter[str]()  # bytes by address
        self.bytes = 0

    @asynccontextmanager
    async def hold(self, request: Request, most: int) -> AsyncIterator[bytes]:
        """Read a body of at most `most` bytes, and count it until the end of the `with`.

        RequestTooLarge; Unavailable or Overloaded beyond the limits; HTTPException 408 for a part
        that does not come in time; starlette's ClientDisconnect.
        """
        address, counted = request.client.host if request.client else "", 0
        body = bytearray()
        try:
            _check(_announced(request), most)
            async with asyncio.timeout(self._patience_s) as limit:
                due = PART
                async for chunk in request.stream():
                    body += chunk
                    _check(len(body), most)
                    if (more := len(body) - PART - counted) > 0:
                        self._admit(address, more)
                        self._held[address] += more
                        self.bytes += more
                        counted += more
                    if len(body) >= due:
                        due = len(body) + PART
                        limit.reschedule(asyncio.get_running_loop().time() + self._patience_s)
            whole = bytes(body)
            body.clear()
            yield whole
        except TimeoutError as error:
            if not limit.expired():
                raise
            got, allowed = f"{len(body)} bytes", f"{PART} more within {self._patience_s:g} s"
            raise HTTPException(408, f"body: got {got}, allowed: {allowed}", CLOSE) from error
        finally:
            self._held[address] -= counted
            self.bytes -= counted
            self._held += Counter()  # drops addresses that hold no bytes

    def _admit(self, address: str, more: int) -> None:
        if self._held[address] + more > self._share:
            raise Overloaded(f"requests of one address have {self._share} bytes already", RETRY_S)
        if self.bytes + more > self._most:
            raise Unavailable(f"requests have {self._most} bytes already", "body")


def bodies_of(request: Request) -> Bodies:
    """Return the counter of the request's port; without a Listener, one for this request alone."""
    found: Bodies | None = request.scope.get("state", {}).get("bodies")
    return found or Bodies(patience_s=5.0)


async def read_body(request: Request, most: int) -> bytes:
    """Read the body; raises as `hold`."""
    async with bodies_of(request).hold(request, most) as body:
        return body


def _announced(request: Request) -> int:
    size = request.headers.get("content-length", "0")
    return int(size) if size.isascii() and size.isdigit() and len(size) < 20 else 0


def _check(size: int, most: int) -> None:
    if size > most:
        raise RequestTooLarge("body", f"{size} bytes or more", f"at most {most} bytes")
