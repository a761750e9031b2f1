"""The folder of models: which versions there are, which are loaded, what a name means.

models/<name>/<version>/        an index
models/<name>/aliases.json      {"stable": 3, "canary": 4}

Requests read one immutable Routes; whoever changes something puts another in its place. So a
request sees all of a change or nothing of it, and takes no lock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any

from logitsieve.api.errors import (
    DeviceLost,
    IndexUnreadable,
    InvalidRequest,
    LogitsieveError,
    MissingExtra,
    ModelNotFound,
    Unavailable,
)
from logitsieve.decoding import LocalDecoder
from logitsieve.index import Index, open_index
from logitsieve.index.manifest import is_name, is_version
from logitsieve.server.config import ServeConfig
from logitsieve.server.logs import event
from logitsieve.server.models.aliases import changed, read_aliases, write_alias
from logitsieve.server.models.routes import Routes, Version
from logitsieve.server.models.served import Served

log = logging.getLogger(__name__)

NOT_AN_INDEX = (IndexUnreadable, MissingExtra, OSError)  # the folder's fault, not a defect

# (stage, done, total) of the version being loaded
Progress = Callable[[str, int, int], None]
Opener = Callable[[Path, ServeConfig, Progress], Index]
WriteAlias = Callable[[Path, str, int | None], None]


def ignore(stage: str, done: int, total: int) -> None:
    """Progress that nobody watches."""


def open_configured(path: Path, config: ServeConfig, progress: Progress) -> Index:
    """`open_index` with the server's options, on the model's device."""
    return open_index(
        path,
        threads=config.threads,
        device=config.device_of(path.parent.name),
        verify=config.verify,
        kernel_cache=config.kernel_cache,
        progress=progress,
    )


class Repository:
    """Versions by name; any thread may read and change it."""

    def __init__(
        self,
        config: ServeConfig,
        opener: Opener = open_configured,
        write: WriteAlias = write_alias,
    ) -> None:
        self._config = config
        self._open, self._write = opener, write
        self._changing = Lock()
        self.routes = Routes()
        # Called after every change, by the thread that made it.
        self.changed: Callable[[], object] = lambda: None
        # Called with what is warm, before it answers, by the thread that loads it.
        self.prepare: Callable[[LocalDecoder], object] = lambda decoder: None
        # Called with what a load made known of a GPU, by the thread that loads.
        self.lost: Callable[[DeviceLost], object] = lambda error: None

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
        """Open and warm one version at the start; one that fails is kept with its error.

        DeviceLost where its GPU has failed: no other version will do better there.
        """
        try:
            served = self._opened(name, number, progress)
            version = Version(name, number, served)
        except DeviceLost:
            raise
        except Exception as error:  # whatever is wrong with one version, the others must serve
            version = Version(name, number, error=_told(name, number, error))
        with self._changing:
            self._put(self.routes.with_version(version))
        if version.served is not None:
            _say("available", name, number, "answers")
        return version

    def replace(self, name: str, number: int, alias: str = "") -> Served | None:
        """Open and warm a version and put it in the place of what was loaded under its number.

        `alias`, unless empty, names it from the same moment on. Returns what it replaced, which is
        to be closed when it is idle. If anything fails, all goes on as before and the version
        keeps the reason: ModelNotFound, InvalidRequest naming `name`, `version` or `alias`,
        or Unavailable if the alias could not be written.
        """
        self._require_model(name)
        _require_alias(alias)
        self._mark_loading(name, number)
        try:
            served = self._opened(name, number, ignore)
            try:
                return self._swap(served, number, alias)
            except Exception:
                served.close()
                raise
        except Exception as error:
            self._mark_failed(name, number, _told(name, number, error))
            if isinstance(error, DeviceLost):
                self.lost(error)
            if isinstance(error, NOT_AN_INDEX):
                raise InvalidRequest("version", error, "an index that can be opened") from error
            raise

    def unload(self, name: str, number: int) -> Served | None:
        """Route no more requests to a version, and return it: it is to be closed when it is idle.

        One that failed is forgotten, and None returned. ModelNotFound, or InvalidRequest naming
        `version` where an alias names it.
        """
        with self._changing:
            version = self._known(name, number)
            if aliases := self.routes.aliases_of(version):
                allowed = "a version that no alias names"
                raise InvalidRequest("version", f"{number}, named {', '.join(aliases)}", allowed)
            if version.state in ("loading", "unloading"):
                raise Unavailable(f"version: {version.label} is {version.state}", "version")
            if version.served is None:
                self._put(self.routes.without_version((name, number)))
            else:
                self._put(self.routes.with_version(Version(name, number, leaving=True)))
        _say("unload", name, number, "is sent no more requests")
        return version.served

    def forget(self, name: str, number: int) -> None:
        """An unloaded version has been closed; one that is loading again by now stays."""
        with self._changing:
            version = self.routes.by_key.get((name, number))
            if version is not None and version.leaving:
                self._put(self.routes.without_version((name, number)))

    def set_alias(self, name: str, alias: str, number: int | None) -> Version:
        """Let an alias name a loaded version, or None nothing; the version that it is or was about.

        ModelNotFound, InvalidRequest naming `alias` or `version`, or Unavailable if it could not
        be written: then nothing has changed.
        """
        self._require_model(name)
        if not alias:
            raise InvalidRequest("alias", "nothing", "the name of an alias")
        _require_alias(alias)
        with self._changing:
            if number is None:
                version = self.routes.get(f"{name}:{alias}")
            else:
                version = self._known(name, number)
                if version.served is None:
                    got = f"{version.label}, which is {version.state}"
                    raise InvalidRequest("version", got, "a version that is loaded")
            self._change(self.routes, name, alias, number)
        return version

    def versions(self) -> list[Version]:
        """Every version, by name and number."""
        return list(self.routes.by_key.values())

    def names(self) -> list[str]:
        """Every model name."""
        return self.routes.names

    def aliases(self, version: Version) -> list[str]:
        """The aliases that name this version."""
        return self.routes.aliases_of(version)

    def get(self, model: str) -> Version:
        """See `Routes.get`."""
        return self.routes.get(model)

    def served(self, model: str) -> Served:
        """See `Routes.served`."""
        return self.routes.served(model)

    def _opened(self, name: str, number: int, progress: Progress) -> Served:
        folder = self._config.models / name
        if name not in self.routes.aliases:
            # Later changes of the file by others are theirs: what they name may not be loaded here.
            aliases = read_aliases(folder)
            with self._changing:
                self._put(self.routes.with_aliases(name, aliases))
        began = monotonic()
        index = self._open(folder / str(number), self._config, progress)
        about = {"digest": index.digest, "device": index.device}
        _took("load", name, number, "opened and verified", began, **about)
        began, decoder = monotonic(), LocalDecoder(index)
        decoder.warm(progress)
        self.prepare(decoder)
        _took("warm", name, number, "warmed", began)
        return Served(decoder)

    def _swap(self, served: Served, number: int, alias: str) -> Served | None:
        name = served.decoder.name
        with self._changing:
            replaced = self.routes.by_key.get((name, number))
            routes = self.routes.with_version(Version(name, number, served))
            self._change(routes, name, alias, number)
        old = None if replaced is None else replaced.served
        _say(
            "swap",
            name,
            number,
            "answers" if old is None else "answers in the place of what was loaded before",
            digest=served.decoder.index.digest,
            replaced="" if old is None else old.decoder.index.digest,
            alias=alias,
        )
        return old

    def _change(self, routes: Routes, name: str, alias: str, number: int | None) -> None:
        if alias:
            aliases = changed(routes.aliases.get(name, {}), alias, number)
            routes = routes.with_aliases(name, aliases)
        routes.require_same_dim(self.routes)
        if alias:
            self._write_alias(name, alias, number)
        self._put(routes)
        if alias:
            _say_alias(name, alias, number)

    def _put(self, routes: Routes) -> None:
        self.routes = routes
        self.changed()

    def _write_alias(self, name: str, alias: str, number: int | None) -> None:
        try:
            self._write(self._config.models / name, alias, number)
        except (OSError, IndexUnreadable) as error:
            raise Unavailable(f"alias: could not be written: {error}", "alias") from error

    def _mark_loading(self, name: str, number: int) -> None:
        with self._changing:
            old = self.routes.by_key.get((name, number))
            if old is None or old.served is None:
                self._put(self.routes.with_version(Version(name, number)))

    def _mark_failed(self, name: str, number: int, error: str) -> None:
        with self._changing:
            old = self.routes.by_key.get((name, number), Version(name, number))
            self._put(self.routes.with_version(Version(name, number, old.served, error)))

    def _known(self, name: str, number: int) -> Version:
        version = self.routes.by_key.get((name, number))
        if version is None:
            raise ModelNotFound(f"version: no {name[:100]}@{number} is loaded", "version")
        return version

    def _require_model(self, name: str) -> None:
        if not is_name(name) or not (self._config.models / name).is_dir():
            raise ModelNotFound(f"name: there is no folder {name[:100]!r} of a model", "name")


def _require_alias(alias: str) -> None:
    if alias and not is_name(alias):
        raise InvalidRequest("alias", repr(alias[:100]), "[a-z0-9][a-z0-9._-]{0,63}")


def _told(name: str, number: int, error: Exception) -> str:
    """What is kept of a failed load; it is logged, with a traceback where it is a defect."""
    told = f"{type(error).__name__}: {error}"
    defect = not isinstance(error, (LogitsieveError, OSError))
    about: dict[str, Any] = {"model": name, "version": str(number), "error": told}
    said = f"{name}@{number} failed: {error}"
    event(log, logging.ERROR, "load_failed", said, traceback=defect, **about)
    return told


def _took(name: str, model: str, number: int, done: str, began: float, **fields: Any) -> None:
    seconds = round(monotonic() - began, 3)
    _say(name, model, number, f"{done} in {seconds:.1f} s", **fields, seconds=seconds)


def _say(name: str, model: str, number: int, what: str, **fields: Any) -> None:
    said = f"{model}@{number}: {what}"
    event(log, logging.INFO, name, said, model=model, version=str(number), **fields)


def _say_alias(model: str, alias: str, number: int | None) -> None:
    version = None if number is None else str(number)
    said = f"{model}:{alias} names " + ("nothing" if version is None else f"{model}@{version}")
    event(log, logging.INFO, "alias", said, model=model, alias=alias, version=version)
