"""Calls of llama.cpp in which a failed assertion raises, and does not end the process.

ggml calls a function of ours with the message, and abort() after it; without such a function,
abort() raises SIGABRT in its thread. Ours never returns: the call has a thread of its own, which
then waits for ever with what it allocated. So it must compute on one thread: others would wait for
that one, and spin.
"""

import atexit
import ctypes
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
_HANDLER = ctypes.CFUNCTYPE(None, ctypes.c_int)
ACTION_BYTES = 256  # more than a `struct sigaction`
FAILED = re.compile(r"[^/\n]*:\d+: .*|what\(\): .*")  # as ggml and C++ say it
_ONE = threading.Lock()  # the function is the process's
_WAITING: list[Any] = []  # functions that threads wait in


class Aborted(RuntimeError):
    """llama.cpp's message."""


def in_thread(work: Callable[[], T], name: str) -> tuple[threading.Thread, Future[T]]:
    """Return a thread to start, and the future of what `work` returns or raises in it."""
    made = Future[T]()

    def run() -> None:
        try:
            made.set_result(work())
        except BaseException as error:
            made.set_exception(error)

    return threading.Thread(target=run, name=name, daemon=True), made


def without_abort(functions: Any, work: Callable[[], T]) -> T:
    """Return `work()`, a call of the library `functions`; Aborted where it would abort."""
    if not hasattr(functions, "ggml_set_abort_callback"):
        return work()

    def stop(message: bytes) -> None:
        text = message.decode(errors="replace")
        if threading.get_ident() != thread.ident:  # of another call
            print(text, file=sys.stderr, flush=True)
            return
        _WAITING.append(callback)
        place, _, reason = text.partition(": ")
        made.set_exception(Aborted(f"{place.rpartition('/')[2]}: {reason}"))
        threading.Event().wait()

    callback = _CALLBACK(stop)
    thread, made = in_thread(work, "logitsieve-llamacpp")
    with _ONE:
        before = functions.ggml_set_abort_callback(callback)
        try:
            thread.start()
            wait([made])
        finally:  # an interrupted call goes on
            wait([made])
            functions.ggml_set_abort_callback(before)
    return made.result()


def require_debugger() -> None:
    """Let ggml find a debugger, one that does nothing where there is none.

    Before it aborts, ggml forks, and the child becomes gdb, or calls exit(), whose handlers may
    wait for ever: for threads that a fork leaves behind, as PyTorch's do. This process waits, too.
    """
    if shutil.which("gdb") or shutil.which("lldb"):
        return
    folder = Path(tempfile.mkdtemp(prefix="logitsieve-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "gdb").symlink_to(shutil.which("true") or sys.executable)
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), str(folder)])


def without_sigabrt(work: Callable[[], T]) -> T:
    """Return `work()`; Aborted where its thread would end the process by abort()."""
    require_debugger()
    libc, before = ctypes.CDLL(None), ctypes.create_string_buffer(ACTION_BYTES)
    libc.signal.restype, libc.signal.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)

    def stop(number: int) -> None:
        if threading.get_ident() != thread.ident:  # of another call
            libc.sigaction(signal.SIGABRT, before, None)
            getattr(libc, "raise")(number)  # once this returns
            return
        _WAITING.append(handler)
        made.set_exception(Aborted())
        threading.Event().wait()

    handler = _HANDLER(stop)
    thread, made = in_thread(work, "logitsieve-ik")
    with _ONE, _printed() as said:
        libc.sigaction(signal.SIGABRT, None, before)
        libc.signal(signal.SIGABRT, ctypes.cast(handler, ctypes.c_void_p))
        try:
            thread.start()
            wait([made])
        finally:  # an interrupted call goes on
            wait([made])
            libc.sigaction(signal.SIGABRT, before, None)
        if isinstance(made.exception(), Aborted):
            found = FAILED.search(said())
            raise Aborted(found[0] if found else "without a message")
    return made.result()


@contextmanager
def _printed() -> Iterator[Callable[[], str]]:
    """Keep what the process prints until the end; yield a function that takes it instead.

    ggml says there why it aborts, and a debugger that it starts prints all threads.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        files = {1: out, 2: err}
        kept = {number: os.dup(number) for number in files}

        def taken() -> str:
            err.seek(0)
            text = err.read().decode(errors="replace")
            for file in files.values():
                file.truncate(0)
            return text

        for number, file in files.items():
            os.dup2(file.fileno(), number)
        try:
            yield taken
        finally:
            for number, file in files.items():
                os.dup2(kept[number], number)
                os.close(kept[number])
                file.seek(0)
                os.write(number, file.read())
