"""The header by which the port's process describes a request to the engine."""

from time import monotonic
from typing import NamedTuple, Self

from starlette.requests import Request

HEADER = "x-logitsieve-ticket"
GONE = 499  # status: the client has closed its connection
MOST_JSON = 16 << 20  # bytes of a request: reading them holds up all others


class Ticket(NamedTuple):
    number: int  # 0: none is known
    size: int  # bytes of the body
    until: float  # of `monotonic`

    @classmethod
    def of(cls, request: Request, timeout_s: float) -> Self:
        number, _, left = request.headers.get(HEADER, "").partition(" ")
        size = int(request.headers.get("content-length", MOST_JSON))
        return cls(int(number or 0), size, monotonic() + min(float(left or timeout_s), timeout_s))

    def header(self) -> str:
        return f"{self.number} {max(self.until - monotonic(), 0):.3f}"


async def client_gone(request: Request) -> None:
    """Return when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
