"""Measures operating points again where an index was calibrated on another processor or GPU.

In the background, one point at a time, on a small share of one core: no request waits for it.
Until it is done AUTO goes by the times of the other machine. The index is not written to.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from threading import Event, Thread, get_native_id
from time import monotonic

from logitsieve.decoding import answers_on, measured_elsewhere
from logitsieve.server.models.routes import Version
from logitsieve.server.models.served import Served

log = logging.getLogger(__name__)

SHARE = 0.1  # of one core, at most
# Not the lowest priority: this thread holds the interpreter's lock for moments, and must get time
# to release it on a machine that is busy with other work.
NICE = 10
JOIN_S = 5.0


def step_back() -> None:
    """Give the calling thread a lower priority, so that requests come first."""
    if sys.platform == "linux":  # elsewhere a thread has no priority of its own
        os.setpriority(os.PRIO_PROCESS, get_native_id(), NICE)


class Recalibrator:
    """Measures the versions that need it, one after the other, in a thread of its own."""

    def __init__(self, share: float = SHARE) -> None:
        self._rest = 1 / share - 1  # seconds of rest for a second of work
        self._stopping = Event()
        self._thread: Thread | None = None

    def start(self, versions: Sequence[Version]) -> None:
        """Queue the versions that were calibrated on another device than they answer on."""
        due = [
            (version.label, version.served, calibrated_on)
            for version in versions
            if version.served is not None
            and (calibrated_on := measured_elsewhere(version.served.decoder.index))
        ]
        if due:
            self._thread = Thread(
                target=self._run, args=(due, self._thread), name="logitsieve-again", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        """End after the measurement under way, whose results are dropped."""
        self._stopping.set()
        self.join(JOIN_S)

    def join(self, timeout_s: float) -> None:
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self, due: Sequence[tuple[str, Served, str]], before: Thread | None) -> None:
        if before is not None:
            before.join()
        step_back()
        for label, served, calibrated_on in due:
            if self._stopping.is_set():
                return
            try:
                self._measure(label, served, calibrated_on)
            except Exception:  # requests go on by the times there are
                log.exception("%s: its operating points were not measured again", label)

    def _measure(self, label: str, served: Served, calibrated_on: str) -> None:
        # Warnings: these are shown where logging is not set up.
        points, started = len(served.decoder.points), monotonic()
        device = answers_on(served.decoder.index)
        if "contexts" not in (served.decoder.index.measured or {}):
            message = "%s: calibrated on %s, without contexts to measure on %s"
            log.warning(message, label, calibrated_on, device)
            return
        message = "%s: calibrated on %s, measuring %d points again on %s"
        log.warning(message, label, calibrated_on, points, device)
        if served.measure_again(lambda spent: self._stopping.wait(spent * self._rest)):
            took = monotonic() - started
            log.warning("%s: %d points measured on %s in %.1f s", label, points, device, took)
