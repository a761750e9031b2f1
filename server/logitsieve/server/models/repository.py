"""The folder of models: models/<name>/<version>/ is an index, aliases.json names versions."""

import logging
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import Any, cast

from logitsieve.api.errors import (
    DeviceLost,
    IndexUnreadable,
    InvalidRequest,
    LogitsieveError,
    MissingExtra,
    ModelNotFound,
    Unavailable,
)
from logitsieve.decoding import LocalDecoder, open_sharded
from logitsieve.index import Index, open_index
from logitsieve.index.manifest import is_name, is_version
from logitsieve.server.config import ServeConfig
from logitsieve.server.logs import event
from logitsieve.server.models.routes import (
    LISTED,
    Routes,
    Version,
    changed,
    read_aliases,
    write_alias,
)
from logitsieve.server.models.served import AnyDecoder, Served, Watched
from logitsieve.server.models.sharded import ShardedModel, is_sharded
from logitsieve.utils.options import Progress, no_progress

log = logging.getLogger(__name__)

NOT_AN_INDEX = (IndexUnreadable, MissingExtra, OSError)
OPENING = ("threads", "device", "verify", "kernel_cache")

Opened = Index | ShardedModel
Opener = Callable[[Path, ServeConfig, Progress], Opened]
WriteAlias = Callable[[Path, str, int | None], None]


def open_configured(path: Path, config: ServeConfig, progress: Progress) -> Opened:
    options: Any = {name: getattr(config, name) for name in OPENING} | {"progress": progress}
    if is_sharded(path):
        decoder = open_sharded(path, **options)
        indexes = [cast(LocalDecoder, shard.decoder).index for shard in decoder.shards]
        return ShardedModel(path, [index.manifest for index in indexes], decoder)
    return open_index(path, **options)


class Repository:
    """A folder's versions. Any thread but the event loop may change them, since changes wait."""

    def __init__(
        self, config: ServeConfig, opener: Opener = open_configured, write: WriteAlias = write_alias
    ) -> None:
        self._config, self._open, self._write = config, opener, write
        self._changing = Lock()
        self.routes = Routes()
        self.changed: Callable[[], object] = lambda: None
        # Called by a loading thread if a GPU fails.
        self.lost: Callable[[DeviceLost], object] = lambda error: None

    def find(self) -> list[tuple[str, int]]:
        """Return (name, version) of every index folder; InvalidRequest without any."""
        root = self._config.model_repository
        models = [folder for folder in _folders(root) if is_name(folder.name)]
        indexes = sorted((model.name, number) for model in models for number in _versions(model))
        if not indexes:
            allowed = "a folder that holds <name>/<version>/ indexes"
            if _versions(root):
                allowed += f": one folder up, {root.absolute().parent}"
            raise InvalidRequest("model_repository", root, allowed)
        return indexes

    def load(self, name: str, number: int, progress: Progress) -> Version:
        """Open and warm a version at startup; it keeps the error if that fails. DeviceLost."""

        def labelled(stage: str, done: int, total: int) -> None:
            progress(f"{name}@{number} {stage}", done, total)

        try:
            version = Version(name, number, self._opened(name, number, labelled))
        except DeviceLost:
            raise
        except Exception as error:
            version = Version(name, number, error=_log_failure(name, number, error))
        with self._changing:
            self._put(self.routes.with_version(version))
        if version.served is not None:
            _log("available", name, number, "answers")
        return version

    def replace(self, name: str, number: int, alias: str = "") -> Served | None:
        """Open and warm a version, and let it replace the loaded one of its number.

        `alias`, unless empty, names it from then on. Returns the replaced version, to be closed
        when idle. ModelNotFound, InvalidRequest and Unavailable (the alias cannot be written)
        change nothing but the version's error.
        """
        self._require_model(name)
        require_alias(alias)
        versions = _versions(self._config.model_repository / name)
        if number not in versions:
            numbers = ", ".join(map(str, versions[-LISTED:])) or "none"
            allowed = f"a version that has a folder: {numbers}"
            raise InvalidRequest("version", f"{name}@{number}, which has none", allowed)
        self._mark(name, number)
        try:
            served = self._opened(name, number, no_progress)
            try:
                return self._swap(served, number, alias)
            except Exception:
                served.close()
                raise
        except Exception as error:
            self._mark(name, number, _log_failure(name, number, error))
            if isinstance(error, DeviceLost):
                self.lost(error)
            if isinstance(error, NOT_AN_INDEX):
                raise InvalidRequest("version", error, "an index that can be opened") from error
            raise

    def unload(self, name: str, number: int) -> Served | None:
        """Send no more requests to a version. If it was loaded, return it, to be closed when idle.

        ModelNotFound; InvalidRequest naming `version` if an alias names it; Unavailable if it is
        being loaded or unloaded.
        """
        with self._changing:
            version = self._version(name, number)
            if aliases := self.routes.aliases_of(version):
                allowed = "a version that no alias names"
                raise InvalidRequest("version", f"{number}, named {', '.join(aliases)}", allowed)
            if version.state in ("loading", "unloading"):
                raise Unavailable(f"version: {version.label} is {version.state}", "version")
            if version.served is None:
                self._put(self.routes.without_version((name, number)))
            else:
                self._put(self.routes.with_version(Version(name, number, leaving=True)))
        _log("unload", name, number, "is sent no more requests")
        return version.served

    def fail_written(self) -> None:
        """Fail every version whose files somebody writes. It is closed when idle."""
        for version in self.versions():
            served = version.served
            if served is None or served.files is None:
                continue
            try:
                served.files.check()
            except IndexUnreadable as error:
                self._fail(version, error)

    def forget(self, name: str, number: int) -> None:
        with self._changing:
            version = self.routes.by_key.get((name, number))
            if version is not None and version.leaving:
                self._put(self.routes.without_version((name, number)))

    def set_alias(self, name: str, alias: str, number: int | None) -> Version:
        """Let an alias name a loaded version, or none; return the version it names or last named.

        ModelNotFound, InvalidRequest naming `alias` or `version`, and Unavailable change nothing.
        """
        self._require_model(name)
        if not alias:
            raise InvalidRequest("alias", "nothing", "the name of an alias")
        require_alias(alias)
        with self._changing:
            if number is None:
                version = self.routes.get(f"{name}:{alias}")
            else:
                version = self._version(name, number)
                if version.served is None:
                    got = f"{version.label}, which is {version.state}"
                    raise InvalidRequest("version", got, "a version that is loaded")
            self._put_named(self.routes, name, alias, number)
        return version

    def versions(self) -> list[Version]:
        return list(self.routes.by_key.values())

    def adopt_aliases(self, name: str) -> None:
        """Adopt the aliases that another process has written.

        IndexUnreadable; InvalidRequest if the hidden size of a name would change.
        """
        aliases = read_aliases(self._config.model_repository / name)
        with self._changing:
            routes = self.routes.with_aliases(name, aliases)
            routes.require_same_dim(self.routes)
            self._put(routes)

    def _opened(self, name: str, number: int, progress: Progress) -> Served:
        folder = self._config.model_repository / name
        if name not in self.routes.aliases:
            # Later ones come through `set_alias` and `adopt_aliases`.
            aliases = read_aliases(folder)
            with self._changing:
                self._put(self.routes.with_aliases(name, aliases))
        files = Watched(folder / str(number))
        try:
            return Served(self._ready(name, number, progress), files)
        except BaseException:
            files.close()
            raise

    def _ready(self, name: str, number: int, progress: Progress) -> AnyDecoder:
        began = monotonic()
        path = self._config.model_repository / name / str(number)
        opened = self._open(path, self._config, progress)
        decoder: AnyDecoder = opened if isinstance(opened, ShardedModel) else LocalDecoder(opened)
        about = {"digest": decoder.index.digest, "device": decoder.index.device}
        log_time("load", name, number, "opened and verified", began, **about)
        began = monotonic()
        decoder.warm(progress)
        log_time("warm", name, number, "warmed", began)
        return decoder

    def _swap(self, served: Served, number: int, alias: str) -> Served | None:
        name = served.decoder.name
        version = Version(name, number, served)
        with self._changing:
            replaced = self.routes.by_key.get((name, number))
            self._put_named(self.routes.with_version(version), name, alias, number)
        old = None if replaced is None else replaced.served
        text = "answers" if old is None else "answers in the place of what was loaded before"
        before = "" if old is None else old.decoder.index.digest
        digest = served.decoder.index.digest
        _log("swap", name, number, text, digest=digest, replaced=before, alias=alias)
        return old

    def _put_named(self, routes: Routes, name: str, alias: str, number: int | None) -> None:
        if alias:
            aliases = changed(routes.aliases.get(name, {}), alias, number)
            routes = routes.with_aliases(name, aliases)
        routes.require_same_dim(self.routes)
        if alias:
            try:
                self._write(self._config.model_repository / name, alias, number)
            except (OSError, IndexUnreadable) as error:
                raise Unavailable(f"alias: could not be written: {error}", "alias") from error
        self._put(routes)
        if alias:
            version = None if number is None else str(number)
            message = f"{name}:{alias} names {f'{name}@{version}' if version else 'nothing'}"
            event(log, logging.INFO, "alias", message, model=name, alias=alias, version=version)

    def _put(self, routes: Routes) -> None:
        self.routes = routes
        self.changed()

    def _fail(self, version: Version, error: IndexUnreadable) -> None:
        name, number, served = version.name, version.number, version.served
        assert served is not None
        with self._changing:
            if self.routes.by_key.get((name, number)) is not version:
                return
            failed = Version(name, number, error=_log_failure(name, number, error))
            self._put(self.routes.with_version(failed))
        served.leases.end()
        served.leases.idle.add_done_callback(lambda _: served.close())

    def _mark(self, name: str, number: int, error: str = "") -> None:
        """Store a version's error, or mark it as loading unless an old one answers."""
        with self._changing:
            served = self.routes.by_key.get((name, number), Version(name, number)).served
            if error or served is None:
                self._put(self.routes.with_version(Version(name, number, served, error)))

    def _version(self, name: str, number: int) -> Version:
        version = self.routes.by_key.get((name, number))
        if version is None:
            raise ModelNotFound(f"version: no {name[:100]}@{number} is loaded", "version")
        return version

    def _require_model(self, name: str) -> None:
        if not is_name(name) or not (self._config.model_repository / name).is_dir():
            raise ModelNotFound(f"name: there is no folder {name[:100]!r} of a model", "name")


def _folders(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []


def _versions(model: Path) -> list[int]:
    return sorted(int(folder.name) for folder in _folders(model) if is_version(folder.name))


def require_alias(alias: str) -> None:
    if alias and not is_name(alias):
        raise InvalidRequest("alias", repr(alias[:100]), "[a-z0-9][a-z0-9._-]{0,63}")


def _log_failure(name: str, number: int, error: Exception) -> str:
    reason = f"{type(error).__name__}: {error}"
    defect = not isinstance(error, (LogitsieveError, OSError))
    fields: dict[str, Any] = {"model": name, "version": str(number), "error": reason}
    message = f"{name}@{number} failed: {error}"
    event(log, logging.ERROR, "load_failed", message, traceback=defect, **fields)
    return reason


def log_time(name: str, model: str, number: object, done: str, began: float, **fields: Any) -> None:
    seconds = round(monotonic() - began, 3)
    _log(name, model, number, f"{done} in {seconds:.1f} s", **fields, seconds=seconds)


def _log(name: str, model: str, number: object, text: str, **fields: Any) -> None:
    message = f"{model}@{number}: {text}"
    event(log, logging.INFO, name, message, model=model, version=str(number), **fields)
