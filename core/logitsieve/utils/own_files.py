"""Read and write files that no other user could have written.

They decide which code runs, or what counts as checked. The folder that is named, folders in it and
the file must belong to this user or to root, and only their owner may have the right to write.
"""

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from logitsieve.utils.environment import name_in_errors

MODE = os.O_RDONLY | os.O_NONBLOCK  # do not wait for a pipe
OTHERS = stat.S_IWGRP | stat.S_IWOTH


@contextmanager
def opened_own(folder: Path, name: Path | str = "") -> Iterator[int]:
    """Yield a descriptor of folder/name; PermissionError if others could have written it."""
    with ExitStack() as opened:
        path, parent = Path(), -1
        for part in map(str, (folder, *Path(name).parts)):
            path /= part
            with name_in_errors(path):
                parent = os.open(part, MODE, dir_fd=None if parent < 0 else parent)
            opened.callback(os.close, parent)
            status = os.fstat(parent)
            owners = sorted({0, os.geteuid()})
            if status.st_uid not in owners or status.st_mode & OTHERS:
                got = f"owner {status.st_uid}, mode {stat.S_IMODE(status.st_mode):04o}"
                reason = f"got {got}, allowed: owner {' or '.join(map(str, owners))}, chmod go-w"
                raise PermissionError(errno.EACCES, reason, str(path))
        yield parent


def read_own(folder: Path, name: Path | str) -> bytes:
    """Return the content of folder/name; PermissionError if others could have written it."""
    with opened_own(folder, name) as descriptor, open(descriptor, "rb", closefd=False) as stream:
        return stream.read()


def make_own(folder: Path) -> None:
    """Make a folder and its missing parents, with rights for this user alone."""
    for path in reversed([path for path in (folder, *folder.parents) if not path.exists()]):
        path.mkdir(mode=0o700, exist_ok=True)


def write_own(folder: Path, name: Path | str, content: bytes) -> None:
    """Write folder/name completely or not at all, with rights for this user alone."""
    file = folder / name
    make_own(file.parent)
    # A temporary folder, so that a full disk leaves no partial file.
    with (
        opened_own(folder, Path(name).parent),
        name_in_errors(file),
        tempfile.TemporaryDirectory(dir=file.parent, prefix=".tmp-") as made,
    ):
        new = Path(made) / file.name
        new.touch(mode=0o600)
        new.write_bytes(content)
        new.replace(file)
