"""The log: a line for each event, as text or JSON; none for answered requests, no hidden values."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Literal, TextIO

REQUEST_ID = "x-request-id"
TRACE_KEYS = ("traceparent", "tracestate")
MAX_ID = 128  # characters of a client's id

FAILED = "request_failed"
PER_SECOND = 10  # lines about failed requests


def event(
    log: logging.Logger,
    level: int,
    name: str,
    message: str,
    *,
    traceback: bool = False,
    **fields: Any,
) -> None:
    """Log an event with `fields` for JSON and, if asked, the handled error's traceback."""
    log.log(level, "%s", message, exc_info=traceback, extra={"event": name, "fields": fields})


def configure(
    log_format: Literal["text", "json"],
    log_level: Literal["debug", "info", "warning", "error"] = "info",
    stream: TextIO | None = None,
) -> None:
    """Let all loggers and warnings of the process, those of libraries too, write such lines."""
    handler = Stderr() if stream is None else logging.StreamHandler(stream)
    handler.setFormatter(Json() if log_format == "json" else logging.Formatter("%(message)s"))
    handler.addFilter(FewFailures())
    root, package = logging.getLogger(), logging.getLogger("logitsieve")
    root.handlers[:], package.handlers[:], package.propagate = [handler], [], True
    package.setLevel(log_level.upper())
    logging.captureWarnings(True)


class Stderr(logging.StreamHandler[TextIO]):
    """Writes to the current sys.stderr, which progress bars replace."""

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


class Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", "message"),
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class FewFailures(logging.Filter):
    """Passes PER_SECOND lines about failed requests; the next one counts the others."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._second, self._passed, self._held_back = -1, 0, 0

    def filter(self, record: logging.LogRecord) -> bool:
        if getattr(record, "event", "") != FAILED:
            return True
        second = int(self._clock())
        if second != self._second:
            self._second, self._passed = second, 0
        if self._passed == PER_SECOND:
            self._held_back += 1
            return False
        self._passed += 1
        if self._held_back:
            record.fields = {**getattr(record, "fields", {}), "not_shown": self._held_back}
            self._held_back = 0
        return True


def trace_context(metadata: Any) -> dict[str, str]:
    """Return the W3C trace context in a call's metadata."""
    return {key: value for key, value in metadata or () if key in TRACE_KEYS}


def request_id(metadata: Any) -> str:
    """Return the id in a call's metadata, or "" if it cannot be repeated."""
    for key, value in metadata or ():
        if key == REQUEST_ID and isinstance(value, str) and 0 < len(value) <= MAX_ID:
            return value
    return ""
