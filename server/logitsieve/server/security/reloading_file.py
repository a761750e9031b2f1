"""Files with secrets, which are replaced while the server runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from logitsieve.api.errors import InvalidRequest
from logitsieve.server.logs import event

log = logging.getLogger(__name__)
T = TypeVar("T")

# Written by the group, or anything by others. A group may read: that is how secrets are mounted.
EXPOSED = 0o027


class ReloadingFile(Generic[T]):
    """What `read()` made of some files when they were last good; the first time, it may raise.

    No clock: `renew` looks at the files, so it is called when what they hold is needed.
    """

    def __init__(
        self, option: str, read: Callable[[], T], secret: Path, beside: Sequence[Path] = ()
    ) -> None:
        self._option, self._read = option, read
        self._secret, self._files = secret, (secret, *beside)
        self._complaint = ""
        self._stamp = self._look()
        self.held = read()
        self._warn_if_exposed()

    def renew(self) -> bool:
        """Read again what has changed; whether that succeeded. What cannot be used is logged once,
        and the last that was good stays: it may be half written.
        """
        try:
            stamp = self._look()
            if stamp == self._stamp:
                return False
            held = self._read()
            # Of two files that belong together only one may have been replaced by now.
            if self._look() != stamp:
                return False
        except (OSError, InvalidRequest) as error:
            self._complain(str(error))
            return False
        self._stamp, self.held, self._complaint = stamp, held, ""
        event(log, logging.INFO, "renewed", f"{self._option}: renewed", option=self._option)
        self._warn_if_exposed()
        return True

    def _look(self) -> list[tuple[int, int, int]]:
        stats = [file.stat() for file in self._files]
        return [(stat.st_ino, stat.st_size, stat.st_mtime_ns) for stat in stats]

    def _complain(self, error: str) -> None:
        if error != self._complaint:
            self._complaint = error
            said = f"{self._option}: the last good one stays: {error}"
            event(log, logging.ERROR, "not_renewed", said, option=self._option, error=error)

    def _warn_if_exposed(self) -> None:
        if self._secret.stat().st_mode & EXPOSED:
            log.warning("%s: others may use it: chmod o-rwx,g-w %s", self._option, self._secret)
