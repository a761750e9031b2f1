"""Read files of an index, and write them completely or not at all."""

import hashlib
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from logitsieve.api.errors import IndexUnreadable, InvalidRequest
from logitsieve.utils.environment import name_in_errors

MAX_REASON = 300
STALE_AFTER_S = 24 * 3600.0
TEMPORARY = ".tmp-"
COPY_BYTES = 1 << 20


def unreadable(path: Path, error: object) -> IndexUnreadable:
    """Return IndexUnreadable; its reason may quote the file, so it is shortened and escaped."""
    text = str(error)[:MAX_REASON]
    return IndexUnreadable(path, text if text.isprintable() else ascii(text)[1:-1])


@contextmanager
def as_unreadable(path: Path) -> Iterator[None]:
    """Turn OSError and ValueError about `path` into IndexUnreadable."""
    try:
        yield
    except FileNotFoundError as error:
        raise IndexUnreadable(path, "missing") from error
    except OSError as error:
        raise IndexUnreadable(path, error.strerror or str(error)) from error
    except ValueError as error:
        raise unreadable(path, error) from error


def regular(path: Path) -> os.stat_result:
    """Return a file's status; IndexUnreadable unless it is regular (a pipe would block)."""
    with as_unreadable(path):
        status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise IndexUnreadable(path, "not a regular file")
    return status


def read_small(path: Path, limit: int) -> bytes:
    """Read a file; IndexUnreadable above `limit` bytes."""
    size = regular(path).st_size
    if size > limit:
        raise IndexUnreadable(path, f"{size} bytes, at most {limit} are read")
    with as_unreadable(path):
        return path.read_bytes()


def fsync_folder(path: Path) -> None:
    """Make a folder's entries durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `out` at the end, or removed on an error."""
    missing = [path for path in out.parents if not path.exists()]
    out.parent.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        fsync_folder(folder.parent)
    remove_stale(out.parent)
    path = out.parent / f"{TEMPORARY}{secrets.token_hex(8)}"
    path.mkdir(parents=True)  # another writer that failed may have removed parents
    try:
        yield path
        try:
            path.rename(out)
        except OSError as error:
            if not os.path.lexists(out):
                raise
            raise InvalidRequest("out", f"{out}, which exists by now", "a new version") from error
        fsync_folder(out.parent)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        with suppress(OSError):  # other writers may use them
            for folder in missing:
                folder.rmdir()
        raise


def write_file(file: Path, content: Iterable[bytes | memoryview]) -> tuple[int, str]:
    """Write a new, durable file; return its size and sha256 (hex). OSError names the file."""
    digest, size = hashlib.sha256(), 0
    with name_in_errors(file), file.open("xb") as stream:
        for piece in content:
            stream.write(piece)
            digest.update(piece)
            size += len(piece)
        stream.flush()
        os.fsync(stream.fileno())
    return size, digest.hexdigest()


def link_or_copy(source: Path, file: Path) -> str | None:
    """Hard-link `source` as `file`, durably; if that fails, copy it and return its sha256."""
    source = source.resolve(strict=True)  # a hard link to a symbolic link would be symbolic, too
    try:
        file.hardlink_to(source)
    except OSError:  # such as another file system
        with source.open("rb") as stream:
            return write_file(file, iter(lambda: stream.read(COPY_BYTES), b""))[1]
    with file.open("rb") as stream:
        os.fsync(stream.fileno())  # its writer may not have done this
    return None


def remove_stale(folder: Path, prefix: str = TEMPORARY) -> None:
    """Remove temporary folders older than a day; others may be in use."""
    oldest = time.time() - STALE_AFTER_S
    for path in folder.glob(f"{prefix}*"):
        with suppress(FileNotFoundError):  # another process was faster
            if path.lstat().st_mtime < oldest:
                shutil.rmtree(path, ignore_errors=True)
