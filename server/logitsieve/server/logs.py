"""The log: one line an event, as text for people or as JSON for machines. Never hidden values.

Requests that are answered leave no line.
"""

from __future__ import annotations

import json
import logging
import sys
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Literal, TextIO

REQUEST_ID = "x-request-id"
MAX_ID = 128  # characters of an id that a client may have us repeat

FAILED = "request_failed"
PER_SECOND = 10  # lines about failed requests; the rest is only counted


def event(
    log: logging.Logger,
    level: int,
    name: str,
    message: str,
    *,
    traceback: bool = False,
    **fields: Any,
) -> None:
    """Log an event by its name, with fields that JSON shows beside the message.

    `traceback`: with that of the exception that is being handled.
    """
    about = {"event": name, "fields": fields}
    log.log(level, "%s", message, exc_info=traceback, extra=about)


def failed(log: logging.Logger, rpc: str, model: str, code: str, **fields: Any) -> None:
    """Log a request that was answered by an error; fields that are empty are left out."""
    if log.isEnabledFor(logging.INFO):
        given = {name: value for name, value in fields.items() if value}
        about = " ".join(f"{name}={value}" for name, value in given.items())
        message = f"{rpc} of {model} failed: {code} {about}"
        event(log, logging.INFO, FAILED, message, rpc=rpc, model=model, code=code, **given)


def configure(log_format: Literal["text", "json"], stream: TextIO | None = None) -> None:
    """Send what this package logs to `stream` (stderr); for the one who owns the process."""
    handler = Stderr() if stream is None else logging.StreamHandler(stream)
    handler.setFormatter(Json() if log_format == "json" else logging.Formatter("%(message)s"))
    handler.addFilter(FewFailures())
    root = logging.getLogger("logitsieve")
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    root.propagate = False


class Stderr(logging.StreamHandler[TextIO]):
    """To what is stderr when a line is written: bars of progress make room for it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        self.stream = sys.stderr
        super().emit(record)


class Json(logging.Formatter):
    """time, level, event and message, then the event's own fields; a traceback as `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
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
    """Lets at most PER_SECOND lines about failed requests pass; the next says how many did not."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._second, self._passed, self._held_back = -1, 0, 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether this line is written."""
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


def request_id(metadata: Any) -> str:
    """The id that a call's metadata brings, if it can be repeated; "" otherwise."""
    for key, value in metadata or ():
        if key == REQUEST_ID and isinstance(value, str) and 0 < len(value) <= MAX_ID:
            return value
    return ""


def new_request_id() -> str:
    """For a call that brought none and has something to be found by."""
    return uuid.uuid4().hex[:16]
