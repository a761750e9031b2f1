"""The state of a capture on disk: one that is killed resumes from it.

A capture writes its result whole or not at all. What it needs to resume lies in a folder next to
`out` with a name that depends on the model and the options.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import shutil
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import BrokenExecutor
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
from logitsieve.utils.environment import name_in_errors

SCRATCH = ".tmp-capture-"
EVERY_S = 10.0  # between two writes of the state

logger = logging.getLogger(__name__)


@contextmanager
def capture_checkpoint(
    out: Path, dim: int, config: CaptureConfig, *parts: Any
) -> Iterator[CaptureCheckpoint]:
    """The checkpoint of a capture to `out` with these options; `parts` identify the model.

    The folder stays for a day if the process is killed or interrupted, or if the executor loses its
    workers; other errors would only be met again. InvalidRequest if another process makes the same
    capture.
    """
    remove_stale(out.parent, SCRATCH)
    folder = out.parent / f"{SCRATCH}{_digest(json.dumps(asdict(config)), parts)[:16]}"
    with name_in_errors(folder):
        folder.mkdir(exist_ok=True, parents=True)
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            got = f"{out.parent}, where another process captures the same"
            raise InvalidRequest("out", got, "one capture of the same at a time") from None
        try:
            yield CaptureCheckpoint(folder, dim, config)
        except BrokenExecutor:
            raise
        except Exception:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        shutil.rmtree(folder, ignore_errors=True)


class CaptureCheckpoint:
    """A sample of the contexts of batches, and the number of batches that it has taken in.

    Those batches are not run again: their digest is compared with that of the run before.
    """

    def __init__(self, folder: Path, dim: int, config: CaptureConfig) -> None:
        self._note, self._rows_file = folder / "sample.json", folder / "rows.npy"
        self._options = dim, config.max_rows, config.dtype, config.seed
        with name_in_errors(self._note):
            found = json.loads(self._note.read_text()) if self._note.exists() else {}
        self._done, self._digest = found.get("batches", 0), found.get("digest", "")
        self._begun = deque[str]()  # digests of batches with rows that are still to come
        self._noted = monotonic()
        counts = Counts(*found.get("counts", NOTHING))
        self.rows = SpreadSample(self._rows_file, *self._options, counts)

    def missing(self, batches: Iterable[Any]) -> Iterator[Any]:
        """The batches that the sample lacks.

        If `batches` does not begin with those of the run before, all of them: the capture starts
        over. InvalidRequest if they cannot be read a second time for that.
        """
        rest, digest, count = iter(batches), "", 0
        for batch in islice(rest, self._done):
            digest, count = _digest(digest, batch), count + 1
        if (digest, count) != (self._digest, self._done):
            if rest is batches:
                got = "others than those of the capture that was killed"
                allowed = "the same ones; what it left is removed: call again to start over"
                raise InvalidRequest("batches", got, allowed)
            logger.warning("%s: a killed capture read other batches: starting over", self._note)
            self._start_over()
            rest, digest = iter(batches), ""
        for batch in rest:
            digest = _digest(digest, batch)
            self._begun.append(digest)
            yield batch

    def _start_over(self) -> None:
        self._note.unlink(missing_ok=True)
        self._done, self._digest = 0, ""
        self.rows = SpreadSample(self._rows_file, *self._options)

    def add(self, hidden: Float32) -> None:
        """Take in the contexts of the next of the missing batches, [B, D]."""
        if self.rows.thins_with(len(hidden)):
            self._note.unlink(missing_ok=True)  # until the rows are in place again
        self.rows.add(hidden)
        self._done, self._digest = self._done + 1, self._begun.popleft()
        if monotonic() - self._noted > EVERY_S:
            self._write_note()

    def write(self, folder: Path, config: CaptureConfig, **facts: Any) -> dict[str, Any]:
        """Write the sample and `capture.json`, whose contents are returned, in `folder`."""
        self._note.unlink(missing_ok=True)  # no capture resumes from here
        rows = self.rows.write_shards(folder, config.shard_rows)
        summary = {"rows": rows, "rows_seen": self.rows.seen, **facts, **asdict(config)}
        written = folder / "capture.json"
        with name_in_errors(written):
            written.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
        return summary

    def _write_note(self) -> None:
        self.rows.flush()
        note = {"batches": self._done, "digest": self._digest, "counts": self.rows.counts}
        written = self._note.with_suffix(".tmp")
        with name_in_errors(written):
            written.write_text(json.dumps(note))
            written.rename(self._note)
        self._noted = monotonic()


def _digest(before: str, batch: Any) -> str:
    """The sha256 of a batch and all before it; objects of other types count as their type."""
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
