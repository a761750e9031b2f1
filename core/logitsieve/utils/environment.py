"""Installed extras, local addresses, and errors that name their file."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path

from logitsieve.api.errors import MissingExtra


def require(extra: str, *modules: str) -> None:
    for module in modules:
        if find_spec(module) is None:
            raise MissingExtra(module, extra)


def is_loopback(host: str) -> bool:
    """Check for an IP address or name that every resolver maps to this machine."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextmanager
def name_in_errors(file: Path) -> Iterator[None]:
    """Name `file` in an OSError: a full disk's error names no file."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(file)
        raise


def reason_of(error: Exception) -> str:
    """Return the error's text; a file's error without its number and path."""
    return (isinstance(error, OSError) and error.strerror) or str(error)
