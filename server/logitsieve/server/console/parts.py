"""The arrays of a loaded index, from its files."""

from __future__ import annotations

from collections.abc import Mapping

from logitsieve.api.errors import InvalidRequest
from logitsieve.heads._base.spec import Arrays
from logitsieve.index import Index
from logitsieve.index.contents import read_contents


def read_parts(index: Index) -> Mapping[str, Arrays]:
    """Mapped arrays by part and name; InvalidRequest where the files are another index by now."""
    contents = read_contents(index.path)
    if contents.manifest.digest != index.digest:
        got = f"{index.name}@{index.version}, whose files have been replaced since it was loaded"
        raise InvalidRequest("model", got, "a version whose files are those that were loaded")
    return contents.parts


def read_screen(index: Index) -> Arrays:
    """The arrays of the screen; InvalidRequest names `model` where there is none."""
    parts = read_parts(index)
    if "screen" not in parts or "screen" not in index.heads:
        raise InvalidRequest("model", f"{index.name}@{index.version}, without one", "a screen")
    return parts["screen"]
