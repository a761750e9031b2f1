"""models/<name>/aliases.json, {"stable": 3, "canary": 4}: read whole, replaced whole.

Processes that share the folder take turns, and each changes the alias that it means and no other.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from logitsieve.api.errors import IndexUnreadable
from logitsieve.index.atomic import TEMPORARY, write_file
from logitsieve.index.files import fsync_folder
from logitsieve.index.manifest import canonical, is_name

ALIASES_FILE = "aliases.json"
STABLE = "stable"

Write = Callable[[Path, Iterable[bytes]], object]  # makes a new file, durable


def read_aliases(model: Path) -> dict[str, int]:
    """alias -> version number; IndexUnreadable unless the file holds that, or is missing."""
    file = model / ALIASES_FILE
    if not file.exists():
        return {}
    try:
        aliases = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise IndexUnreadable(file, f"not JSON: {error}") from error
    valid = isinstance(aliases, dict) and all(
        is_name(alias) and type(number) is int and number > 0 for alias, number in aliases.items()
    )
    if not valid:
        raise IndexUnreadable(file, 'not an object of versions by alias, like {"stable": 3}')
    return dict(aliases)


def changed(aliases: Mapping[str, int], alias: str, number: int | None) -> dict[str, int]:
    """The aliases with one that names `number`, or without it."""
    rest = {name: version for name, version in aliases.items() if name != alias}
    return rest if number is None else {**rest, alias: number}


def write_alias(model: Path, alias: str, number: int | None, write: Write = write_file) -> None:
    """Let `alias` name the version `number`, or None nothing, on disk; the others stay.

    Whole or not at all: OSError, or IndexUnreadable for a file that is spoiled, changes nothing.
    """
    temporary = model / f"{TEMPORARY}aliases"
    with locked(model):
        aliases = changed(read_aliases(model), alias, number)
        temporary.unlink(missing_ok=True)  # of one that died
        try:
            write(temporary, [canonical(aliases), b"\n"])
            temporary.replace(model / ALIASES_FILE)
        finally:
            temporary.unlink(missing_ok=True)
        fsync_folder(model)


@contextmanager
def locked(model: Path) -> Iterator[None]:
    """Keep other processes from changing the aliases of the folder `model`, and wait for them."""
    descriptor = os.open(model, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
