"""Optional dependencies: one way to ask for them."""

from __future__ import annotations

from importlib.util import find_spec

from logitsieve.api.errors import MissingExtra


def require(extra: str, *modules: str) -> None:
    """Raise MissingExtra, naming the pip line, unless all `modules` of `extra` can be imported."""
    for module in modules:
        if find_spec(module) is None:
            raise MissingExtra(module, extra)
