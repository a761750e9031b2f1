"""The full check of an index: digests of files, ranges of numbers, the sketch of the matrix."""

import hashlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Lock

import numpy as np

from logitsieve.api.errors import IndexUnreadable
from logitsieve.api.results import Int64
from logitsieve.heads._base.head import softmax_sha256
from logitsieve.heads._base.spec import Arrays, check_values
from logitsieve.heads.sketch import SKETCH
from logitsieve.index.files import as_unreadable, regular
from logitsieve.index.manifest import FileEntry, canonical
from logitsieve.index.reader import PARTS, Contents, Report, check_digest, read_vocabulary, spec_of
from logitsieve.index.sketch_rows import SAMPLED, check_rows, sampled_rows
from logitsieve.index.tensorfile import TensorFile
from logitsieve.utils.options import Progress
from logitsieve.utils.own_files import read_own, write_own
from logitsieve.utils.stored import StoredMatrix

HASH_THREADS = 2
HASH_BYTES = 1 << 20
REMEMBERED = 256  # fingerprints
VERIFIED = "verified.json"


def verify_contents(
    contents: Contents, progress: Progress | None = None, all_rows: bool = False
) -> None:
    """Check everything that the digest covers; IndexUnreadable names the first file at fault.

    `all_rows` of the sketch are compared with the matrix, otherwise a sample.
    """
    jobs = _jobs(contents)
    report = counter(progress, "verify", sum(size for size, _ in jobs))
    with ThreadPoolExecutor(HASH_THREADS, thread_name_prefix="logitsieve-verify") as pool:
        futures = [pool.submit(job, report) for _, job in jobs]
        try:
            for future in futures:
                future.result()
        finally:
            pool.shutdown(cancel_futures=True)
    rows = checked_rows(contents, all_rows)
    if len(rows):
        try:
            report = counter(progress, "rows", len(rows))
            check_rows(contents.softmax, contents.parts[SKETCH.name], rows, report)
        except ValueError as error:
            file = contents.path / contents.manifest.parts[SKETCH.name].file
            raise IndexUnreadable(file, f"not the sketch of this matrix: {error}") from error


def checked_rows(contents: Contents, all_rows: bool) -> Int64:
    """Return the rows of W to compare with their sketch, if there is one."""
    manifest = contents.manifest
    if SKETCH.name not in contents.parts:
        return np.empty(0, np.int64)
    if all_rows:
        return np.arange(manifest.vocab_size)
    return sampled_rows(manifest.digest, manifest.vocab_size)


def _jobs(contents: Contents) -> list[tuple[int, Callable[[Report], None]]]:
    manifest, softmax = contents.manifest, contents.softmax

    def hash_softmax(report: Report) -> None:
        file = contents.path / manifest.parts["softmax"].file
        with as_unreadable(file):
            check_scales(softmax.matrix)
        sha256 = softmax_sha256(softmax.matrix, softmax.bias, report)
        if sha256 != manifest.softmax_sha256:
            reason = f"holds the matrix {sha256}, the manifest says {manifest.softmax_sha256}"
            raise IndexUnreadable(file, reason)

    def read_numbers(part: str, arrays: Arrays, report: Report) -> None:
        with as_unreadable(contents.path / manifest.parts[part].file):
            check_values(spec_of(part, arrays), arrays, report)

    def check_vocabulary(report: Report) -> None:
        words = read_vocabulary(contents.path, manifest)
        report(sum(len(word.encode()) + 1 for word in words or ()))

    jobs: list[tuple[int, Callable[[Report], None]]] = []
    for part, entry in manifest.parts.items():
        jobs.append((entry.size, partial(_check_file, contents, entry)))
        if arrays := contents.parts.get(part):
            size = sum(array.nbytes for array in arrays.values())
            jobs.append((size, partial(read_numbers, part, arrays)))
    jobs.append((softmax.matrix.nbytes + softmax.bias.nbytes, hash_softmax))
    if manifest.vocabulary is not None:
        jobs.append((manifest.vocabulary.size, check_vocabulary))
    return sorted(jobs, key=lambda job: -job[0])


def check_scales(matrix: StoredMatrix) -> None:
    """Raise ValueError for the first row in blocks with a scale that is NaN or infinite."""
    if (row := matrix.row_without_scale()) is not None:
        raise ValueError(f"weight has a scale that is not finite in row {row}")


def _check_file(contents: Contents, entry: FileEntry, report: Report) -> None:
    file, digest = contents.path / entry.file, hashlib.sha256()
    for piece in _pieces(file, contents.mapped.get(entry.file)):
        digest.update(piece)
        report(len(piece))
    check_digest(file, entry, digest.hexdigest())


def _pieces(file: Path, mapped: TensorFile | None) -> Iterator[memoryview]:
    """Yield the mapped bytes of a file, or read a file that is not mapped."""
    if mapped is not None:
        view = memoryview(mapped.content)
        yield from (view[start : start + HASH_BYTES] for start in range(0, len(view), HASH_BYTES))
        return
    buffer = memoryview(bytearray(HASH_BYTES))
    with as_unreadable(file), file.open("rb", buffering=0) as stream:
        while count := stream.readinto(buffer):
            yield buffer[:count]


def counter(progress: Progress | None, stage: str, total: int) -> Report:
    """Return a thread-safe `Report` that passes the running sum to `progress`."""
    if progress is None:
        return lambda _: None
    done, lock = 0, Lock()

    def report(count: int) -> None:
        nonlocal done
        with lock:
            done += count
            progress(stage, done, total)

    return report


def fingerprint(contents: Contents) -> str:
    """Return a hash that changes if a file changes, or if this version checks more."""
    statuses = []
    for entry in contents.manifest.files():
        mapped = contents.mapped.get(entry.file)
        status = regular(contents.path / entry.file) if mapped is None else mapped.status
        # A program can set the modification time back, but not the status-change time.
        times = [status.st_mtime_ns, status.st_ctime_ns]
        statuses.append([status.st_dev, status.st_ino, status.st_size, *times])
    checked = [sorted(PARTS), SAMPLED]
    state = [str(contents.path), contents.manifest.digest, *checked, statuses]
    return hashlib.sha256(canonical(state)).hexdigest()


class VerifiedMemory:
    """Fingerprints of indexes that passed, in this user's own file `folder`/verified.json."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __contains__(self, mark: str) -> bool:
        return mark in self._read()

    def add(self, mark: str) -> None:
        """Remember a fingerprint, if the folder is writable."""
        with suppress(OSError):
            write_own(self._folder, VERIFIED, canonical([*self._read(), mark][-REMEMBERED:]))

    def _read(self) -> list[str]:
        try:
            marks = json.loads(read_own(self._folder, VERIFIED))
        except (OSError, ValueError, RecursionError):
            return []
        return [mark for mark in marks if isinstance(mark, str)] if isinstance(marks, list) else []
