"""Manifests and whole index folders with a few things wrong, whose digests are right again."""

import hashlib
import json
import shutil
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np

from logitsieve.api.errors import IndexUnreadable, LogitsieveError
from logitsieve.index import Index, open_index
from logitsieve.index.manifest import MANIFEST_FILE, Manifest, canonical
from tools.fuzz.feed import Feed
from tools.fuzz.models import D

EDITS = 3
ODD: tuple[Any, ...] = (
    *(None, True, 0, 1, -1, 2, 24, 100, 101, 1 << 31, 1 << 63, 1 << 200, 0.5, 1e308, -0.0),
    *("", "full", "screen", "sketch", "softmax", "../x", "a" * 64, "manifest.json", [], {}, [[]]),
    *({"file": "softmax.safetensors", "size": 1, "sha256": "0" * 64}, {"probes": 1.0}),
)


def read_manifest(data: bytes, good: bytes) -> str:
    """A manifest of these bytes, or the good one with edits: refused, or read as it was written."""
    feed = Feed(data)
    content = feed.rest()[1:] if feed.byte() % 2 else spoiled_manifest(good, feed)
    try:
        manifest = Manifest.from_json(content)
    except IndexUnreadable as error:
        return f"refused: {error.reason[:20]}"
    assert manifest.file_bytes() == content, "another text of the same manifest"
    return "read"


def spoiled_manifest(good: bytes, feed: Feed) -> bytes:
    """Up to three edits, under a digest that fits."""
    fields = json.loads(good)
    for _ in range(1 + feed.byte() % EDITS):
        _edit(fields, feed)
    return signed(fields)


def signed(fields: dict[str, Any]) -> bytes:
    """manifest.json of these fields."""
    rest = {name: value for name, value in fields.items() if name != "digest"}
    digest = hashlib.sha256(canonical(rest)).hexdigest()
    return canonical({**rest, "digest": digest}) + b"\n"


def _edit(fields: Any, feed: Feed) -> None:
    """Go down some steps, and remove, rename or replace what is there."""
    keys = sorted(fields) if isinstance(fields, dict) else []
    if not keys:
        return
    chosen = feed.byte()
    key = keys[chosen % len(keys)]
    kind = feed.byte()
    if kind % 2 and isinstance(fields[key], dict):
        _edit(fields[key], feed)
    elif kind % 16 == 0:
        del fields[key]
    elif kind % 16 == 2:
        fields[feed.word()] = fields.pop(key)
    else:
        fields[key] = deepcopy(ODD[feed.byte() % len(ODD)])  # edits may go into it


class Opened:
    """Opens index folders that are spoiled in one way, and asks the heads of those that open."""

    def __init__(self, good: Path, scratch: Path, kernels: Path | None) -> None:
        self._good, self._folder, self._kernels = good, scratch / "demo" / "1", kernels

    def __call__(self, data: bytes) -> str:
        """Refused by IndexUnreadable, or opened, and then every head answers or refuses."""
        feed = Feed(data)
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.copytree(self._good, self._folder)
        manifest = self._folder / MANIFEST_FILE
        if feed.byte() % 4 == 0:
            manifest.write_bytes(spoiled_manifest(manifest.read_bytes(), feed))
        else:
            self._spoil_part(feed)
        try:
            index = open_index(self._folder, kernel_cache=self._kernels)
        except IndexUnreadable as error:
            return f"refused: {error.file.name}"
        return f"opened: {answers(index)}"

    def _spoil_part(self, feed: Feed) -> None:
        """Bytes of a file, under hashes that fit: only the checks of values are left."""
        file = self._folder / MANIFEST_FILE
        fields = json.loads(file.read_bytes())
        names = sorted(fields["parts"])
        entry = fields["parts"][names[feed.byte() % len(names)]]
        part = self._folder / entry["file"]
        content = bytearray(part.read_bytes())
        for _ in range(1 + feed.byte() % 8):
            where, bits = feed.whole(16, False), feed.byte()
            # Most of the values would be anywhere: the header is what is read first.
            where %= len(content) if bits % 2 else 600
            content[where % len(content)] = feed.byte()
        part.write_bytes(content)
        entry["sha256"] = hashlib.sha256(content).hexdigest()
        file.write_bytes(signed(fields))


def answers(index: Index) -> str:
    """Names of the heads that refuse two rows, or "answers"."""
    hidden_states, found = np.ones((2, D), np.float32), []
    for name in sorted(index.heads):
        try:
            ids = index.head(name).topk(hidden_states, 3).ids
        except LogitsieveError as error:
            found.append(f"{name} {type(error).__name__}")
            continue
        assert ((ids >= 0) & (ids < index.vocab_size)).all(), "an id that there is not"
    index.close()
    return ", ".join(found) or "answers"
