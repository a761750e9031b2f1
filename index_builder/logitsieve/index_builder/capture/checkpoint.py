"""The sample of a capture on disk: one that is killed goes on from it."""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import torch

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Float32
from logitsieve.index.files import remove_stale
from logitsieve.index_builder.capture.stream_sample import NOTHING, Counts, SpreadSample
from logitsieve.index_builder.config import CaptureConfig
from logitsieve.index_builder.kept import until_done
from logitsieve.utils.environment import name_in_errors

SCRATCH = ".tmp-capture-"
EVERY_S = 10.0  # between two notes of how far it is


@contextmanager
def kept_sample(beside: Path, dim: int, config: CaptureConfig, *parts: Any) -> Iterator[KeptSample]:
    """The sample that is made with these options of what `parts` say, in a folder in `beside`.

    Where the process is killed or interrupted, the folder stays, for a day. InvalidRequest where
    another process makes the same sample.
    """
    remove_stale(beside, SCRATCH)
    folder = beside / f"{SCRATCH}{_digest(json.dumps(asdict(config)), parts)[:16]}"
    with name_in_errors(folder):
        folder.mkdir(exist_ok=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            got = f"{beside}, where another process captures the same"
            raise InvalidRequest("out", got, "one capture of the same at a time") from None
        with until_done(folder):
            yield KeptSample(folder, dim, config)


class KeptSample:
    """A sample of what batches give, and how many it has seen.

    Batches that are in it are not run again: their digest is compared with that of the run before.
    """

    def __init__(self, folder: Path, dim: int, config: CaptureConfig) -> None:
        self._note = folder / "sample.json"
        with name_in_errors(self._note):
            found = json.loads(self._note.read_text()) if self._note.exists() else {}
        self._done, self._digest = found.get("batches", 0), found.get("digest", "")
        self._begun = deque[str]()  # digests of batches whose rows are to come
        self._noted = monotonic()
        counts = Counts(*found.get("counts", NOTHING))
        options = config.max_rows, config.dtype, config.seed
        self.rows = SpreadSample(folder / "rows.npy", dim, *options, counts)

    def missing(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The batches after those that the sample has; InvalidRequest where those differ."""
        rest, digest, count = iter(batches), "", 0
        for batch in islice(rest, self._done):
            digest, count = _digest(digest, batch), count + 1
        if (digest, count) != (self._digest, self._done):
            got = "others than those of the capture that was killed"
            allowed = "the same ones; what it left is removed now, so that any begin anew"
            raise InvalidRequest("batches", got, allowed)
        for batch in rest:
            digest = _digest(digest, batch)
            self._begun.append(digest)
            yield batch

    def add(self, hidden: Float32) -> None:
        """What the next of the missing batches gave, [B, D]."""
        if self.rows.thins_with(len(hidden)):
            self._note.unlink(missing_ok=True)  # until the rows are in place again
        self.rows.add(hidden)
        self._done, self._digest = self._done + 1, self._begun.popleft()
        if monotonic() - self._noted > EVERY_S:
            self._write_note()

    def write_shards(self, folder: Path, shard_rows: int) -> tuple[int, int]:
        """Write the sample as files in `folder`; its rows, and those that it has seen."""
        self._note.unlink(missing_ok=True)  # no capture goes on from here
        return self.rows.write_shards(folder, shard_rows), self.rows.seen

    def _write_note(self) -> None:
        self.rows.flush()
        note = {"batches": self._done, "digest": self._digest, "counts": self.rows.counts}
        written = self._note.with_suffix(".tmp")
        with name_in_errors(written):
            written.write_text(json.dumps(note))
            written.rename(self._note)
        self._noted = monotonic()


def _digest(before: str, batch: Any) -> str:
    """The sha256 of a batch and what was before it; objects of other types count as their type."""
    hasher = hashlib.sha256(before.encode())
    for part in _parts(batch):
        hasher.update(part)
    return hasher.hexdigest()


def _parts(value: Any) -> Iterator[bytes]:
    yield f"{type(value).__name__} ".encode()
    if isinstance(value, torch.Tensor):
        value = value.detach().cpu()
        yield f"{value.dtype} {tuple(value.shape)} ".encode()
        yield value.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
    elif isinstance(value, np.ndarray):
        yield f"{value.dtype} {value.shape} ".encode()
        yield value.tobytes()
    elif isinstance(value, Mapping):
        yield f"{len(value)} ".encode()
        for key, each in value.items():
            yield from _parts(key)
            yield from _parts(each)
    elif isinstance(value, tuple | list):
        yield f"{len(value)} ".encode()
        for each in value:
            yield from _parts(each)
    elif isinstance(value, str | int | float | bytes | None):
        yield repr(value).encode()
