"""Splitting a folder of models, so that each of its indexes is in shards."""

from __future__ import annotations

import shutil
from pathlib import Path

from logitsieve.api.errors import InvalidRequest
from logitsieve.index import split_index
from logitsieve.index.manifest import is_name, is_version
from logitsieve.ray.serving.shards import read_manifest
from logitsieve.server.models.routes import ALIASES_FILE


def split_models(models: Path, shards: int) -> Path:
    """Split every index of `models` into so many shards in `models`-`shards`; that folder.

    Those that lie there already are left as they are, and the aliases follow. InvalidRequest names
    what cannot be split.
    """
    if type(shards) is not int or shards < 1:
        raise InvalidRequest("shards", shards, "an integer >= 1, or 0 to split nothing")
    out = models.with_name(f"{models.name}-{shards}")
    for version in sorted(models.glob("*/*")):
        if not (is_name(version.parent.name) and is_version(version.name)):
            continue
        new = out / version.parent.name / version.name
        if not new.exists():
            heads = read_manifest(version).heads
            split_index(version, new, shards, bounds="certified" in heads)
    for aliases in models.glob(f"*/{ALIASES_FILE}"):
        if (folder := out / aliases.parent.name).is_dir():
            shutil.copyfile(aliases, folder / ALIASES_FILE)
    return out
