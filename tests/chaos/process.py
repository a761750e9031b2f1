"""A server of the command line in a session of its own: its ports, memory and end."""

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep

START_S = 300.0  # a first start compiles every kernel
MIB = 1 << 20


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
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:  # it has just ended
                    continue
                if int(fields[3]) == self.pid:
                    yield int(entry.name)

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
        began = monotonic()
        self.send(number)
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            return float("inf")
        return monotonic() - began

    def kill(self) -> None:
        """End all of the session."""
        for pid in [*self.members(), self.pid]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self._process.wait()
