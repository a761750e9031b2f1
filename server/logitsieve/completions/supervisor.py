"""Runs llama.cpp in a process of its own, which may abort, and starts it again.

Connections are passed to the engine as ends of socket pairs, so that no other process can call it.
"""

import asyncio
import faulthandler
import logging
import os
import pickle
import signal
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.context import SpawnProcess
from time import monotonic
from typing import Any

from logitsieve.api.errors import LogitsieveError, Unavailable
from logitsieve.completions.journal import Journal
from logitsieve.server.logs import configure, event

log = logging.getLogger(__name__)

LENGTH = struct.Struct("<I")
FOR_SUPERVISOR = signal.SIGINT, signal.SIGHUP  # a terminal sends them to the engine, too
STEADY_S = 60.0  # an engine that ran for longer is started again at once
STUCK_S = 300.0  # a step may compile kernels, or read tensors from a slow disk
LOOK_S = 1.0
TRACES_S = 2.0  # for a stuck engine to write its traceback
FIRST_S, LONGEST_S = 1.0, 60.0  # shortest and longest pause before another start


class Line:
    def __init__(self, control: socket.socket, journal: Journal) -> None:
        self.control, self.journal = control, journal

    def say(self, error: Exception | None) -> None:
        """Report that the engine is ready (None), or why it cannot be."""
        word = pickle.dumps(error)
        self.control.sendall(LENGTH.pack(len(word)) + word)

    async def connections(self, take: Callable[[socket.socket], Any]) -> None:
        loop, gone = asyncio.get_running_loop(), asyncio.Event()
        self.control.setblocking(False)

        def receive() -> None:
            with suppress(BlockingIOError):
                said, files, _, _ = socket.recv_fds(self.control, 64, 64)
                for file in files:
                    take(socket.socket(fileno=file))
                if not said:
                    loop.remove_reader(self.control)
                    gone.set()

        loop.add_reader(self.control, receive)
        await gone.wait()


def run_engine(engine: Callable[[Line], None], line: Line) -> None:
    """Run the engine in this process, which leads a process group of its own."""
    os.setpgid(0, 0)
    for name in FOR_SUPERVISOR:
        signal.signal(name, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, FOR_SUPERVISOR)
    faulthandler.enable()
    configure("text")
    try:
        engine(line)
    except (LogitsieveError, OSError) as error:
        line.say(error)


@dataclass(eq=False)
class Child:
    process: SpawnProcess
    control: socket.socket
    began: float = field(default_factory=monotonic)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def hello(self) -> None:
        """Wait until the engine is ready. Raises the error that it reports; EOFError if it ends."""
        [size] = LENGTH.unpack(await self._receive(LENGTH.size))
        error = pickle.loads(await self._receive(size))
        if error is not None:
            raise error

    async def _receive(self, size: int) -> bytes:
        loop, got = asyncio.get_running_loop(), b""
        while len(got) < size:
            part = await loop.sock_recv(self.control, size - len(got))
            if not part:
                raise EOFError
            got += part
        return got

    async def end(self) -> str:
        """Wait for its end, kill what is left of its group, and return how it ended."""
        with suppress(EOFError, ConnectionError):
            await self._receive(1)
        await asyncio.to_thread(self.process.join)
        self.kill()
        self.control.close()
        self.ended.set()
        code = self.process.exitcode or 0
        return signal.Signals(-code).name if code < 0 else f"exit code {code}"

    async def abort(self) -> None:
        """End it by SIGABRT, which writes tracebacks, or else by SIGKILL."""
        with suppress(ProcessLookupError):
            os.kill(self.process.pid or 0, signal.SIGABRT)
        with suppress(TimeoutError):
            await asyncio.wait_for(self.ended.wait(), TRACES_S)
            return
        self.kill()

    def kill(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid or 0, signal.SIGKILL)
        if self.process.is_alive():
            self.process.kill()


class Supervisor:
    """Keeps an engine running; `ended` receives the requests that it worked on when it ended.

    An engine that does not beat for `stuck_s` is aborted.
    """

    def __init__(
        self,
        engine: Callable[[Line], None],
        ended: Callable[[set[int]], None],
        first_s: float = FIRST_S,
        stuck_s: float = STUCK_S,
    ) -> None:
        self.ends = 0
        self._engine, self._ended, self._first_s = engine, ended, first_s
        self._stuck_s = stuck_s
        self._journal = Journal()
        self._child: Child | None = None
        self._ready, self._stop = asyncio.Event(), asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None

    @property
    def ready(self) -> bool:
        return self._ready.is_set() and not self.stopping

    @property
    def stopping(self) -> bool:
        return self._stop.is_set()

    async def start(self) -> None:
        child = self._spawn()
        try:
            await child.hello()
        except EOFError as error:
            how = await child.end()
            raise Unavailable(f"the engine ended by {how} while it started") from error
        except BaseException:
            child.kill()
            raise
        self._ready.set()
        self._keeping = asyncio.create_task(self._keep(child))

    async def connect(self) -> tuple[Child, asyncio.StreamReader, asyncio.StreamWriter]:
        """Wait for a ready engine, and connect to it. Unavailable while stopping."""
        while True:
            await self._ready.wait()
            child = self._child
            if self.stopping or child is None:
                raise Unavailable("the server is stopping")
            ours, theirs = socket.socketpair()
            try:
                socket.send_fds(child.control, [b"."], [theirs.fileno()])
            except BlockingIOError:
                ours.close()
                await asyncio.sleep(0.01)
                continue
            except OSError:
                ours.close()
                self._ready.clear()
                continue
            finally:
                theirs.close()
            return child, *await asyncio.open_unix_connection(sock=ours)

    async def stop(self) -> None:

        self._stop.set()
        self._ready.set()
        child = self._child
        if child is not None and child.process.is_alive():
            child.process.terminate()
            if self._keeping is None:
                await child.end()
        if self._keeping is not None:
            await self._keeping

    def kill(self) -> None:
        if self._child is not None:
            self._child.kill()

    def _spawn(self) -> Child:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        context = get_context("spawn")
        line = Line(theirs, self._journal)
        process = context.Process(target=run_engine, args=(self._engine, line), daemon=True)
        # The engine ignores these signals once it runs; they must not interrupt its imports.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, FOR_SUPERVISOR)
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self._child = Child(process, ours)
        return self._child

    async def _watch(self, child: Child) -> None:
        """Abort a stuck engine. Time in which this process is suspended does not count."""
        beats, silent_s, look_s = self._journal.beats, 0.0, min(LOOK_S, self._stuck_s / 4)
        while silent_s < self._stuck_s or self.stopping:
            await asyncio.sleep(look_s)
            before, beats = beats, self._journal.beats
            silent_s = silent_s + look_s if beats == before else 0.0
        message = f"the engine took no step for {silent_s:g} s: it is ended"
        event(log, logging.ERROR, "engine_stuck", message, silent_s=silent_s)
        await child.abort()

    async def _keep(self, child: Child) -> None:
        quick = 0  # ends soon after a start, in a row
        while True:
            watching = asyncio.create_task(self._watch(child))
            how = await child.end()
            watching.cancel()
            self._ready.clear()
            self._ended(self._journal.found())
            self.ends += 1
            quick = 0 if monotonic() - child.began > STEADY_S else quick + 1
            pause = min(self._first_s * 2 ** (quick - 2), LONGEST_S) if quick > 1 else 0.0
            if not self.stopping:
                message = f"the engine ended by {how}: it is started again in {pause:g} s"
                event(log, logging.ERROR, "engine_ended", message, how=how, pause_s=pause)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), pause)
            if self.stopping:
                self._ready.set()  # wakes those who wait in `connect`
                return
            child = self._spawn()
            try:
                await child.hello()
            except EOFError:
                continue
            except Exception as error:
                event(log, logging.ERROR, "engine_refused", f"the engine cannot start: {error}")
                continue
            self._ready.set()
            event(log, logging.INFO, "engine_ready", "the engine answers again")
