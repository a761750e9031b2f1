"""Which versions there are, and what a name means: immutable, so a swap is one assignment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from logitsieve.api.errors import InvalidRequest, LogitsieveError, ModelNotFound, Unavailable
from logitsieve.server.models.aliases import STABLE
from logitsieve.server.models.served import Served

State = Literal["loading", "available", "unloading", "failed"]
Key = tuple[str, int]  # (name, version)


@dataclass(frozen=True)
class Version:
    """A version: `served` while it is loaded, `error`, why it could not be loaded the last time."""

    name: str
    number: int
    served: Served | None = None
    error: str = ""
    leaving: bool = False

    @property
    def label(self) -> str:
        """name@version."""
        return f"{self.name}@{self.number}"

    @property
    def state(self) -> State:
        """What Models.Get calls it."""
        if self.served is not None:
            return "available"
        if self.leaving:
            return "unloading"
        return "failed" if self.error else "loading"


class Routes:
    """Versions and aliases at one moment."""

    def __init__(
        self,
        versions: Mapping[Key, Version] | None = None,
        aliases: Mapping[str, Mapping[str, int]] | None = None,
    ) -> None:
        self.by_key = dict(sorted((versions or {}).items()))
        self.aliases = dict(aliases or {})
        self.names = sorted({name for name, _ in self.by_key})
        self._routes = self._find()
        self._served = {
            name: version.served
            for name, version in self._routes.items()
            if version.served is not None
        }

    def with_version(self, version: Version) -> Routes:
        """The same with this version in the place of the one of its name and number."""
        key = version.name, version.number
        return Routes({**self.by_key, key: version}, self.aliases)

    def without_version(self, key: Key) -> Routes:
        """The same without a version."""
        rest = {other: version for other, version in self.by_key.items() if other != key}
        return Routes(rest, self.aliases)

    def with_aliases(self, name: str, aliases: Mapping[str, int]) -> Routes:
        """The same with these aliases of the model `name`, in place of those it had."""
        return Routes(self.by_key, {**self.aliases, name: aliases})

    def aliases_of(self, version: Version) -> list[str]:
        """The aliases that name this version."""
        aliases = self.aliases.get(version.name, {})
        return sorted(alias for alias, number in aliases.items() if number == version.number)

    def get(self, model: str) -> Version:
        """The version that "name", "name@version", "name:alias" or "" means, loaded or not.

        ModelNotFound if there is none; "" is InvalidRequest where several models could be meant.
        """
        try:
            return self._routes[model]
        except KeyError:
            raise self._missing(model) from None

    def served(self, model: str) -> Served:
        """What answers for `model`; ModelNotFound or Unavailable says why nothing does."""
        served = self._served.get(model)
        if served is None:
            version = self.get(model)
            if version.state != "failed":
                raise Unavailable(f"model: {version.label} is {version.state}", "model")
            raise ModelNotFound(f"model: {version.label} is not loaded: {version.error}", "model")
        return served

    def require_same_dim(self, before: Routes) -> None:
        """InvalidRequest if a name that was answered would be answered at another hidden size."""
        for name, served in self._served.items():
            old, dim = before._served.get(name), served.decoder.index.dim
            if old is not None and old.decoder.index.dim != dim:
                there = f"{old.decoder.index.dim}, which {name!r} has now"
                raise InvalidRequest("version", f"an index of hidden size {dim}", there)

    def _find(self) -> dict[str, Version]:
        routes: dict[str, Version] = {}
        for version in self.by_key.values():
            routes[version.label] = version
            best = routes.get(version.name)
            if best is None or version.served is not None or best.served is None:
                routes[version.name] = version
        for name in self.names:
            for alias, number in self.aliases.get(name, {}).items():
                # An alias to a version that is not there stays unanswered: no other is meant.
                absent = Version(name, number, error="nothing has loaded it")
                target = self.by_key.get((name, number), absent)
                routes[f"{name}:{alias}"] = target
                if alias == STABLE:
                    routes[name] = target
        if len(self.names) == 1:
            routes[""] = routes[self.names[0]]
        return routes

    def _missing(self, model: str) -> LogitsieveError:
        names = ", ".join(self.names[:10])
        if not model:
            return InvalidRequest("model", "''", f"the name of a model, there are several: {names}")
        return ModelNotFound(f"model: no {model[:100]!r} here, there are: {names}", "model")
