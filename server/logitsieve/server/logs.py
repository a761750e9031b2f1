"""The log, as text or JSON. It has no lines for answered requests, and no hidden states."""

import json
import logging
import sys
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from time import monotonic
from typing import Any, Literal, TextIO

REQUEST_ID = "x-request-id"

FAILED, INCIDENT = "request_failed", "incident"
LEFT = "ExecuteBatchError raised in core"  # gRPC logs this if a client leaves before its answer,
UNREADABLE = "Invalid encoding on"  # and this, with a quote, if a header is not UTF-8
PER_SECOND = 10


def event(
    log: logging.Logger,
    level: int,
    name: str,
    message: str,
    *,
    traceback: bool = False,
    **fields: Any,
) -> None:
    log.log(level, "%s", message, exc_info=traceback, extra={"event": name, "fields": fields})


def configure(
    log_format: Literal["text", "json"],
    log_level: Literal["debug", "info", "warning", "error"] = "info",
    stream: TextIO | None = None,
) -> None:
    handler = Stderr() if stream is None else logging.StreamHandler(stream)
    handler.setFormatter(Json() if log_format == "json" else logging.Formatter("%(message)s"))
    handler.addFilter(FewFailures())
    root, package = logging.getLogger(), logging.getLogger("logitsieve")
    root.handlers[:], package.handlers[:], package.propagate = [handler], [], True
    package.setLevel(log_level.upper())
    logging.captureWarnings(True)


class Stderr(logging.StreamHandler[TextIO]):
    """Writes to sys.stderr, which progress bars replace."""

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
    """Passes at most PER_SECOND lines of each event that clients can cause.

    The next line counts those that were held back. gRPC's tracebacks of clients that left are
    dropped; those of unreadable headers become FAILED lines, which are limited.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        super().__init__()
        self._clock, self._second = clock, -1
        self._passed, self._held_back = Counter[str](), Counter[str]()

    def filter(self, record: logging.LogRecord) -> bool:
        if str(record.msg).startswith(UNREADABLE):
            record.msg, record.args, record.exc_info = "a header of a call is no UTF-8", (), None
            record.event = FAILED
        name = getattr(record, "event", "")
        if name not in (FAILED, INCIDENT):
            return not str(record.msg).startswith(LEFT)
        second = int(self._clock())
        if second != self._second:
            self._second = second
            self._passed.clear()
        if self._passed[name] == PER_SECOND:
            self._held_back[name] += 1
            return False
        self._passed[name] += 1
        if held_back := self._held_back.pop(name, 0):
            record.fields = {**getattr(record, "fields", {}), "not_shown": held_back}
        return True
