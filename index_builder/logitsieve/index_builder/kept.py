"""Finished blocks of a build on disk: one that is killed goes on from them."""

from __future__ import annotations

import hashlib
import io
import secrets
import shutil
from collections.abc import Iterator
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from logitsieve.utils.environment import name_in_errors

DIGEST = hashlib.sha256().digest_size


@contextmanager
def until_done(folder: Path) -> Iterator[None]:
    """Remove `folder` at the end, when what is kept in it is no longer needed.

    It stays where the process was killed or interrupted, or an executor lost its workers; not
    where an error would only be met again.
    """
    try:
        yield
    except BrokenExecutor:
        raise
    except Exception:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)


class KeptBlocks:
    """Tuples of arrays by the name of their stage and their number, each in a file of `folder`.

    A file holds the sha256 of what follows, and the arrays as `.npy`. It gets its name when it is
    whole, so any number of processes may share the folder.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def get(self, stage: str, number: int) -> tuple[np.ndarray, ...] | None:
        """The arrays; None if they are absent or not as they were written."""
        try:
            data = self._file(stage, number).read_bytes()
        except FileNotFoundError:
            return None
        if hashlib.sha256(data[DIGEST:]).digest() != data[:DIGEST]:
            return None
        stream, arrays = io.BytesIO(data), []
        stream.seek(DIGEST)
        while stream.tell() < len(data):
            arrays.append(np.lib.format.read_array(stream, allow_pickle=False))
        return tuple(arrays)

    def put(self, stage: str, number: int, arrays: tuple[np.ndarray, ...]) -> None:
        """Keep the arrays; OSError names the file."""
        stream = io.BytesIO()
        for array in arrays:
            np.lib.format.write_array(stream, array, allow_pickle=False)
        data, file = stream.getvalue(), self._file(stage, number)
        unfinished = self.folder / f"{secrets.token_hex(8)}.tmp"
        # Another build of the same blocks may have ended, and taken the folder with it.
        with name_in_errors(file), suppress(FileNotFoundError):
            self.folder.mkdir(exist_ok=True)
            unfinished.write_bytes(hashlib.sha256(data).digest() + data)
            unfinished.rename(file)

    def _file(self, stage: str, number: int) -> Path:
        return self.folder / f"{stage}-{number:08}"
