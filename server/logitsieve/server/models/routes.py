"""Loaded versions and their aliases.

models/<name>/aliases.json is like {"stable": 3}. A file lock lets one process at a time change it.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep
from typing import Literal

from logitsieve.api.errors import (
    IndexUnreadable,
    InvalidRequest,
    LogitsieveError,
    ModelNotFound,
    Unavailable,
)
from logitsieve.index.files import TEMPORARY, fsync_folder, write_file
from logitsieve.index.manifest import canonical, is_name
from logitsieve.server.models.served import Served

ALIASES_FILE = "aliases.json"
STABLE = "stable"
LISTED = 10
LOCK_S, LOCK_POLL_S = 5.0, 0.02

State = Literal["loading", "available", "unloading", "failed"]
Key = tuple[str, int]
Write = Callable[[Path, Iterable[bytes]], object]  # writes and syncs a new file


@dataclass(frozen=True)
class Version:
    """A version; `served` while loaded; `error` if its last load failed or its files changed."""

    name: str
    number: int
    served: Served | None = None
    error: str = ""
    leaving: bool = False

    @property
    def label(self) -> str:
        return f"{self.name}@{self.number}"

    @property
    def state(self) -> State:
        if self.served is not None:
            return "available"
        if self.leaving:
            return "unloading"
        return "failed" if self.error else "loading"


class Routes:
    """Finds versions by name. It is immutable, so that a change is one assignment."""

    def __init__(
        self,
        versions: Mapping[Key, Version] | None = None,
        aliases: Mapping[str, Mapping[str, int]] | None = None,
    ) -> None:
        self.by_key = dict(sorted((versions or {}).items()))
        self.aliases = dict(aliases or {})
        self.names = sorted({name for name, _ in self.by_key})
        self._routes = self._resolve()
        self._served = {n: v.served for n, v in self._routes.items() if v.served is not None}

    def with_version(self, version: Version) -> Routes:
        key = version.name, version.number
        return Routes({**self.by_key, key: version}, self.aliases)

    def without_version(self, key: Key) -> Routes:
        rest = {other: version for other, version in self.by_key.items() if other != key}
        return Routes(rest, self.aliases)

    def with_aliases(self, name: str, aliases: Mapping[str, int]) -> Routes:
        return Routes(self.by_key, {**self.aliases, name: aliases})

    def aliases_of(self, version: Version) -> list[str]:
        aliases = self.aliases.get(version.name, {})
        return sorted(alias for alias, number in aliases.items() if number == version.number)

    def get(self, model: str) -> Version:
        """Return the version for "name", "name@version", "name:alias" or "", loaded or not.

        ModelNotFound; InvalidRequest if "" could mean several models.
        """
        try:
            return self._routes[model]
        except KeyError:
            raise self._missing(model) from None

    def served(self, model: str) -> Served:
        served = self._served.get(model)
        if served is None:
            version = self.get(model)
            if version.state != "failed":
                raise Unavailable(f"model: {version.label} is {version.state}", "model")
            raise ModelNotFound(f"model: {version.label} is not loaded: {version.error}", "model")
        return served

    def require_same_dim(self, before: Routes) -> None:
        for name, served in self._served.items():
            old, dim = before._served.get(name), served.decoder.index.dim
            if old is not None and old.decoder.index.dim != dim:
                allowed = f"{old.decoder.index.dim}, which {name!r} has now"
                raise InvalidRequest("version", f"an index of hidden size {dim}", allowed)

    def _resolve(self) -> dict[str, Version]:
        routes: dict[str, Version] = {}
        for version in self.by_key.values():
            routes[version.label] = version
            best = routes.get(version.name)
            if best is None or version.served is not None or best.served is None:
                routes[version.name] = version
        for name in self.names:
            for alias, number in self.aliases.get(name, {}).items():
                # An alias of an absent version must not fall back to another.
                absent = Version(name, number, error="nothing has loaded it")
                target = self.by_key.get((name, number), absent)
                routes[f"{name}:{alias}"] = target
                if alias == STABLE:
                    routes[name] = target
        if len(self.names) == 1:
            routes[""] = routes[self.names[0]]
        return routes

    def _missing(self, model: str) -> LogitsieveError:
        names = ", ".join(self.names[:LISTED])
        if not model:
            return InvalidRequest("model", "''", f"the name of a model, there are several: {names}")
        name = model.partition("@")[0].partition(":")[0]
        if name in self.names:
            names = self._described(name)
        return ModelNotFound(f"model: no {model[:100]!r} here, there are: {names}", "model")

    def _described(self, name: str) -> str:
        versions = [str(number) for model, number in self.by_key if model == name]
        aliases = sorted(self.aliases.get(name, {}))[:LISTED]
        alias_part = f"aliases {', '.join(aliases)}" if aliases else "no alias"
        return f"{name} (versions {', '.join(versions[-LISTED:])}; {alias_part})"


def read_aliases(model: Path) -> dict[str, int]:
    """Return alias -> version number; {} without a file. IndexUnreadable."""
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
    rest = {name: version for name, version in aliases.items() if name != alias}
    return rest if number is None else {**rest, alias: number}


def write_alias(model: Path, alias: str, number: int | None, write: Write = write_file) -> None:
    """Let `alias` name the version `number`, or none, on disk.

    After OSError, or IndexUnreadable for a spoiled file, the file is as it was.
    """
    temporary = model / f"{TEMPORARY}aliases"
    with locked(model):
        aliases = changed(read_aliases(model), alias, number)
        temporary.unlink(missing_ok=True)
        try:
            write(temporary, [canonical(aliases), b"\n"])
            temporary.replace(model / ALIASES_FILE)
        finally:
            temporary.unlink(missing_ok=True)
        fsync_folder(model)


@contextmanager
def locked(model: Path, within_s: float = LOCK_S) -> Iterator[None]:
    """Keep other processes from changing a model's aliases; TimeoutError after `within_s`."""
    descriptor = os.open(model, os.O_RDONLY | os.O_DIRECTORY)
    end = monotonic() + within_s
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if monotonic() >= end:
                    message = f"another process has locked {model} for {within_s:g} s"
                    raise TimeoutError(message) from None
                sleep(LOCK_POLL_S)
        yield
    finally:
        os.close(descriptor)
