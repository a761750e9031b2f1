"""The metadata of a call that its client may send, walked once."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from logitsieve.server.logs import REQUEST_ID
from logitsieve.v1.rpcs import TIMEOUT

TRACE_KEYS = ("traceparent", "tracestate")
MAX_ID = 128  # characters of a client's id


class Told(NamedTuple):
    request_id: str  # "" if it cannot be repeated
    trace: dict[str, str]  # W3C trace context
    timeout_ms: int  # the whole time of the call; 0: not told, or a number of more than hours


def told(metadata: Any) -> Told:
    request_id, trace, timeout_ms = "", {}, 0
    for key, value in metadata or ():
        if not isinstance(value, str):
            continue
        if key == TIMEOUT and not timeout_ms and re.fullmatch(r"[0-9]{1,7}", value):
            timeout_ms = int(value)
        elif key == REQUEST_ID and not request_id and 0 < len(value) <= MAX_ID:
            request_id = value
        elif key in TRACE_KEYS:
            trace[key] = value
    return Told(request_id, trace, timeout_ms)


def waited_ns(timeout_ms: int, left_s: float | None) -> int:
    """Return how long a call waited before it got here, in its client and in gRPC."""
    if not timeout_ms or left_s is None:
        return 0
    return max(0, timeout_ms * 1_000_000 - round(left_s * 1e9))
