"""The folder of models: which versions there are, which are loaded, what a name means.

models/<name>/<version>/        an index
models/<name>/aliases.json      {"stable": 3, "canary": 4}
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from logitsieve.decoding import LocalDecoder
from logitsieve.index import Index, open_index
from logitsieve.index.manifest import is_name, is_version
from logitsieve.server.config import ServeConfig
from logitsieve.server.served import Served
from logitsieve.types.errors import IndexUnreadable, InvalidRequest, LogitsieveError, ModelNotFound

log = logging.getLogger(__name__)

ALIASES_FILE = "aliases.json"
STABLE = "stable"


# (stage, done, total) of the version being loaded
Progress = Callable[[str, int, int], None]
Opener = Callable[[Path, ServeConfig, Progress], Index]


@dataclass(frozen=True)
class Version:
    """A version on disk: `served` once it is loaded, or `error`, why it is not."""

    name: str
    number: int
    served: Served | None = None
    error: str = ""

    @property
    def label(self) -> str:
        """name@version."""
        return f"{self.name}@{self.number}"


def open_configured(path: Path, config: ServeConfig, progress: Progress) -> Index:
    """`open_index` with the server's options."""
    return open_index(
        path,
        threads=config.threads,
        verify=config.verify,
        kernel_cache=config.kernel_cache,
        progress=progress,
    )


class Repository:
    """Versions by name. Loaded once at start, then only read, so it needs no lock."""

    def __init__(self, config: ServeConfig, opener: Opener = open_configured) -> None:
        self._config = config
        self._open = opener
        self._versions: dict[tuple[str, int], Version] = {}
        self._aliases: dict[str, dict[str, int]] = {}
        self._routes: dict[str, Version] = {}
        self._served: dict[str, Served] = {}

    def find(self) -> list[tuple[str, int]]:
        """(name, version) of every index folder; InvalidRequest if there is none."""
        root = self._config.models
        found = sorted(
            (folder.name, int(version.name))
            for folder in (root.iterdir() if root.is_dir() else ())
            if is_name(folder.name) and folder.is_dir()
            for version in folder.iterdir()
            if is_version(version.name) and version.is_dir()
        )
        if not found:
            raise InvalidRequest("models", root, "a folder that holds <name>/<version>/ indexes")
        return found

    def load(self, name: str, number: int, progress: Progress) -> Version:
        """Open and warm one version; one that fails is kept with its error."""
        folder = self._config.models / name
        try:
            self._aliases[name] = read_aliases(folder / ALIASES_FILE)
            index = self._open(folder / str(number), self._config, progress)
            version = Version(name, number, _serve(index, progress))
        except Exception as error:  # whatever is wrong with one version, the others must serve
            foreseen = isinstance(error, (LogitsieveError, OSError))
            log.error("%s@%d failed: %s", name, number, error, exc_info=not foreseen)
            version = Version(name, number, error=f"{type(error).__name__}: {error}")
        self._versions[name, number] = version
        self._route()
        return version

    def versions(self) -> list[Version]:
        """Every version, by name and number."""
        return [self._versions[key] for key in sorted(self._versions)]

    def names(self) -> list[str]:
        """Every model name."""
        return sorted({name for name, _ in self._versions})

    def aliases(self, version: Version) -> list[str]:
        """The aliases that name this version."""
        aliases = self._aliases.get(version.name, {})
        return sorted(alias for alias, number in aliases.items() if number == version.number)

    def get(self, model: str) -> Version:
        """The version that "name", "name@version", "name:alias" or "" means, failed or not.

        ModelNotFound if there is none; "" is InvalidRequest where several models could be meant.
        """
        try:
            return self._routes[model]
        except KeyError:
            raise self._missing(model) from None

    def served(self, model: str) -> Served:
        """What answers for `model`; ModelNotFound says why nothing does."""
        served = self._served.get(model)
        if served is None:
            version = self.get(model)
            raise ModelNotFound(f"model: {version.label} is not loaded: {version.error}", "model")
        return served

    def _route(self) -> None:
        routes: dict[str, Version] = {}
        for version in self.versions():
            routes[version.label] = version
            best = routes.get(version.name)
            if best is None or version.served is not None or best.served is None:
                routes[version.name] = version
        for name in self.names():
            for alias, number in self._aliases.get(name, {}).items():
                # An alias to a version that is not there stays unanswered: no other is meant.
                absent = Version(name, number, error="there is no such folder")
                target = self._versions.get((name, number), absent)
                routes[f"{name}:{alias}"] = target
                if alias == STABLE:
                    routes[name] = target
        if len(self.names()) == 1:
            routes[""] = routes[self.names()[0]]
        self._routes = routes
        self._served = {name: version.served for name, version in routes.items() if version.served}

    def _missing(self, model: str) -> LogitsieveError:
        names = ", ".join(self.names()[:10])
        if not model:
            return InvalidRequest("model", "''", f"the name of a model, there are several: {names}")
        return ModelNotFound(f"model: no {model[:100]!r} here, there are: {names}", "model")


def _serve(index: Index, progress: Progress) -> Served:
    decoder = LocalDecoder(index)
    decoder.warm(progress)
    return Served(decoder)


def read_aliases(file: Path) -> dict[str, int]:
    """alias -> version number; IndexUnreadable unless the file holds that, or is missing."""
    if not file.exists():
        return {}
    try:
        aliases = json.loads(file.read_bytes())
    except ValueError as error:
        raise IndexUnreadable(file, f"not JSON: {error}") from error
    valid = isinstance(aliases, dict) and all(
        is_name(alias) and type(number) is int and number > 0 for alias, number in aliases.items()
    )
    if not valid:
        raise IndexUnreadable(file, 'not an object of versions by alias, like {"stable": 3}')
    return dict(aliases)
