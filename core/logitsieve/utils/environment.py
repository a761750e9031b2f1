"""The process's surroundings: installed extras, local addresses, files that cannot be written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path

from logitsieve.api.errors import MissingExtra


def require(extra: str, *modules: str) -> None:
    """Raise MissingExtra, naming the pip line, unless all `modules` of `extra` can be imported."""
    for module in modules:
        if find_spec(module) is None:
            raise MissingExtra(module, extra)


def is_loopback(host: str) -> bool:
    """True for an IP address or name that is this machine, whichever resolver looks it up."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextmanager
def name_in_errors(file: Path) -> Iterator[None]:
    """Name `file` in an OSError that is raised here: that of a full disk names none by itself."""
    try:
        yield
    except OSError as error:
        error.filename = error.filename or str(file)
        raise
