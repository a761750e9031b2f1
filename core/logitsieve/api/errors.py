"""Every exception that logitsieve raises on purpose.

LogitsieveError
├── InvalidRequest (ValueError)
│   ├── InvalidKnob
│   └── RequestTooLarge
├── IndexUnreadable
├── BuildFailed
│   └── TargetNotReached
├── TrainingFailed
├── DeviceExhausted
├── DeviceLost
├── ServiceError
│   ├── ModelNotFound
│   ├── Unauthenticated
│   ├── PermissionDenied
│   ├── Unavailable
│   │   └── ShardUnavailable
│   ├── Overloaded
│   ├── DeadlineExceeded (TimeoutError)
│   ├── Unimplemented
│   └── InternalError
└── MissingExtra (ImportError)
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from math import inf
from pathlib import Path
from typing import Any, Self

LONGEST = 300  # characters of an InvalidRequest
MOST_ALLOWED = 200  # characters of its part about allowed values
LEAST = 40


def between(kind: str, low: float, high: float) -> str:
    """Describe a range of allowed values."""
    first, last = (f"{end:.16g}" if isinstance(end, float) else str(end) for end in (low, high))
    return f"{kind}, {first} or more" if high == inf else f"{kind}, {first} to {last}"


def shortened(text: str, most: int = LONGEST) -> str:
    """Cut the middle out of a text of more than `most` characters, leaving at least LEAST."""
    most = max(most, LEAST)
    half = (most - 3) // 2
    return text if len(text) <= most else f"{text[:half]}...{text[-half:]}"


class LogitsieveError(Exception):
    """The base of all of them."""

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).__new__, (type(self),), {**vars(self), "args": self.args}


class InvalidRequest(LogitsieveError, ValueError):
    """The argument, request field or flag `field` has the value `got`, which is not `allowed`."""

    def __init__(self, field: str, got: object, allowed: str) -> None:
        shown = shortened(allowed, MOST_ALLOWED)
        left = LONGEST - len(f"{field}: got , allowed: {shown}")
        super().__init__(f"{field}: got {shortened(str(got), left)}, allowed: {shown}")
        self.field = field
        self.got = got
        self.allowed = allowed


@contextmanager
def naming(field: str) -> Iterator[None]:
    """Rename the field of an InvalidRequest to the one that the caller knows."""
    try:
        yield
    except InvalidRequest as error:
        raise InvalidRequest(field, error.got, error.allowed) from error


class InvalidKnob(InvalidRequest):
    """A knob that is unknown or out of range."""

    @classmethod
    def unknown(cls, knob: str, value: object, knobs: Iterable[str]) -> Self:
        """Make the error for a knob that is not among `knobs`."""
        names = ", ".join(knobs)
        error = cls(f"knobs.{knob}", value, names or "no knobs")
        error.args = (f"{error.field}: no such knob {knob!r}, there are: {names or 'none'}",)
        return error


class RequestTooLarge(InvalidRequest):
    """A message is larger than the server's published limit."""


class IndexUnreadable(LogitsieveError):
    """An index was refused because of `file`, for the given `reason`."""

    def __init__(self, file: Path | str, reason: str) -> None:
        super().__init__(f"{file}: {reason}")
        self.file = Path(file)
        self.reason = reason


class BuildFailed(LogitsieveError):
    """The builder could not finish, and wrote no index."""


class TargetNotReached(BuildFailed):
    """No setting reaches the target precision; `best` has the measurements of the nearest one."""

    def __init__(self, target: Mapping[str, float], best: Mapping[str, float]) -> None:
        def shown(point: Mapping[str, float]) -> str:
            return ", ".join(f"{key}={value:.5g}" for key, value in point.items())

        super().__init__(
            f"target_precision: no setting reached {shown(target)}; the nearest: {shown(best)}"
        )
        self.target = dict(target)
        self.best = dict(best)


class TrainingFailed(LogitsieveError):
    """The training could not continue; its last checkpoint is complete."""


class DeviceExhausted(LogitsieveError):
    """A GPU has too little memory left for the request."""

    def __init__(self, device: str) -> None:
        super().__init__(f"{device}: out of memory")
        self.device = device


class DeviceLost(LogitsieveError):
    """A GPU has failed; only a new process may use it."""

    def __init__(self, device: str, reason: str) -> None:
        super().__init__(f"{device}: {reason}")
        self.device = device


class ServiceError(LogitsieveError):
    """The server answered with an error; `field` names the wrong request field, if there is one."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class ModelNotFound(ServiceError):
    """The server has no such model, version or alias."""


class Unauthenticated(ServiceError):
    """The call had no API key that the server knows."""


class PermissionDenied(ServiceError):
    """The call's API key lacks the scope, or the call belongs to another port."""


class Unavailable(ServiceError):
    """The model is loading or draining, or no server listens at the address."""


class ShardUnavailable(Unavailable):
    """The shard with rows `first` .. `first` + `rows` - 1 of the vocabulary is unreachable."""

    def __init__(self, first: int, rows: int) -> None:
        span = f"rows {first} .. {first + rows - 1} of the vocabulary"
        super().__init__(f"model: {span} cannot be asked", "model")
        self.first = first
        self.rows = rows


class Overloaded(ServiceError):
    """Too much work is in flight; try again after `retry_after_s` seconds."""

    def __init__(self, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class DeadlineExceeded(ServiceError, TimeoutError):
    """The answer did not come in time."""


class Unimplemented(ServiceError):
    """The server does not implement the call."""


class InternalError(ServiceError):
    """The server has a defect; its log has the details under `incident`."""

    def __init__(self, message: str, incident: str = "") -> None:
        super().__init__(message)
        self.incident = incident


class MissingExtra(LogitsieveError, ImportError):
    """An optional dependency is missing; the message has the command that installs it."""

    def __init__(self, module: str, extra: str) -> None:
        super().__init__(
            f"{module} is not installed: pip install -c constraints.txt -e '.[{extra}]' in a"
            f" checkout, or pip install 'logitsieve[{extra}] @ file:///WHEEL' with the wheel's path"
        )
        self.module = module
        self.extra = extra
