"""The mapped files of a version, which nobody may write while it is loaded.

To read behind the end of a file that was cut ends a process (SIGBUS), and bytes that are written
in place change its answers. Where the kernel grants a lease, a writer waits until it is given back
(45 s by default); other files are looked at, which may be too late.
"""

import fcntl
import os
import signal
from pathlib import Path
from weakref import finalize

from logitsieve.api.errors import IndexUnreadable

IGNORED = signal.SIGURG  # the kernel's signal that somebody wants to write


class Watched:
    """Takes leases of the files in a folder, before they are mapped, until `close`."""

    def __init__(self, folder: Path) -> None:
        paths = sorted(folder.rglob("*.safetensors"))
        self._files = [(path, path.stat(), _lease(path)) for path in paths]
        leases = [lease for _, _, lease in self._files if lease is not None]
        self.close = finalize(self, _close_all, leases)

    def check(self) -> None:
        """IndexUnreadable names a file that was written, or that somebody waits to write."""
        for path, before, lease in self._files if self.close.alive else ():
            if lease is None:
                _check_unwritten(path, before)
            elif fcntl.fcntl(lease, fcntl.F_GETLEASE) != fcntl.F_RDLCK:
                raise IndexUnreadable(path, "somebody writes into the folder of a loaded version")


def _lease(path: Path) -> int | None:
    """Return a descriptor that holds a lease; None for a file of others, or without leases."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, IGNORED)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _check_unwritten(path: Path, before: os.stat_result) -> None:
    try:
        now = path.stat()
    except OSError:
        return  # removed or out of reach: its mapped pages stay
    same = (now.st_dev, now.st_ino) == (before.st_dev, before.st_ino)
    if same and (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        reason = f"written while it was loaded: {now.st_size} bytes, before {before.st_size}"
        raise IndexUnreadable(path, reason)
