"""A server of the command line in a session of its own: its ports, memory, end, and the time
that the machine's other users take from it.
"""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from math import inf
from pathlib import Path
from time import monotonic, sleep
from typing import NamedTuple

TICK_S = 1 / os.sysconf("SC_CLK_TCK")
START_S = 300.0  # a first start compiles every kernel


def processes() -> Iterator[tuple[int, list[str]]]:
    """Yield all of the machine, with the fields of their `stat` from the state on."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it has just ended
                yield int(entry.name), (entry / "stat").read_text().rpartition(")")[2].split()


class Taken(NamedTuple):
    """Seconds until now, of which only differences mean something."""

    waited_s: float  # by threads of a run that could compute, in the queues of the processors
    by_others_s: float  # of each processor, by processes that are none of a run

    def since(self, before: "Taken") -> float:
        """Return the seconds that others took from a run: at most what it waited."""
        waited_s, by_others_s = (now - then for now, then in zip(self, before, strict=True))
        return max(0.0, min(waited_s, by_others_s))


class Process:
    """`logitsieve` with arguments, by the Python of any checkout; its log goes to a file."""

    def __init__(self, python: Path, log: Path, *arguments: object) -> None:
        self.log = log
        command = [str(python), "-m", "logitsieve", *map(str, arguments)]
        with log.open("wb") as sink:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def ended(self) -> int | None:
        """The exit status, once it is there."""
        return self._process.poll()

    def port(self, named: str) -> int:
        """Wait until the log names a port after a text, such as "gRPC at "."""
        until = monotonic() + START_S
        while monotonic() < until and self.ended is None:
            text = self.log.read_text(errors="replace")
            if found := re.search(named + r"\S*?:(\d+)", text):
                return int(found[1])
            sleep(0.1)
        raise RuntimeError(f"no {named!r} in {self.log}: {self.log.read_text()[-500:]}")

    def members(self) -> Iterator[int]:
        """Processes of the session: the command and its children."""
        return (pid for pid, fields in processes() if int(fields[3]) == self.pid)

    def taken(self) -> Taken:
        """Count the session, this process and its children, those that ended with them."""
        run_s = waited_s = 0.0
        for pid, fields in processes():
            if int(fields[3]) == self.pid or os.getpid() in (pid, int(fields[1])):
                run_s += TICK_S * sum(map(int, fields[11:15]))
                for thread in Path(f"/proc/{pid}/task").glob("*/schedstat"):
                    with suppress(OSError):  # it has just ended
                        waited_s += 1e-9 * int(thread.read_text().split()[1])
        fields = Path("/proc/stat").read_text().split()[1:9]
        user, nice, system, _, _, *interrupts = map(int, fields)
        busy_s = TICK_S * (user + nice + system + sum(interrupts))
        return Taken(waited_s, (busy_s - run_s) / (os.cpu_count() or 1))

    def memory_mb(self) -> float:
        """Anonymous memory of the session; mapped files are the index."""
        total = 0
        for pid in self.members():
            try:
                status = Path(f"/proc/{pid}/status").read_text()
            except OSError:
                continue
            total += sum(int(size) for size in re.findall(r"RssAnon:\s+(\d+)", status))
        return total / 1024

    def descriptors(self) -> int:
        count = 0
        for pid in self.members():
            try:
                count += sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
            except OSError:
                continue
        return count

    def send(self, number: int) -> None:
        if self.ended is None:
            self._process.send_signal(number)

    def seconds_to_end(self, number: int, within_s: float) -> float:
        """Send a signal; return the seconds until the command ends, infinity beyond `within_s`."""
        began, seconds = Stopwatch(self), 0.0
        self.send(number)
        while self.ended is None:
            if (seconds := began.seconds(0.0)) > within_s:
                return inf
            sleep(0.05)
        return seconds

    def kill(self) -> None:
        """End all of the session."""
        for pid in [*self.members(), self.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait()


class Stopwatch:
    """The seconds since it was made, on a machine that nobody else uses."""

    def __init__(self, process: Process) -> None:
        self._process, self._began, self._taken = process, monotonic(), process.taken()

    def whole(self) -> float:
        """Return the seconds with what others took."""
        return monotonic() - self._began

    def seconds(self, most: float) -> float:
        """Return them; what others took is looked up if the whole is more than `most`."""
        whole = self.whole()
        return whole if whole <= most else whole - self._process.taken().since(self._taken)
