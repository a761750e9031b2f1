"""Call llama.cpp so that a failed assertion raises an exception instead of ending the process.

Before ggml calls abort(), it calls a callback of ours, or abort() raises SIGABRT, which we handle.
Neither function may return. So the call runs in a thread of its own, which after a failure waits
forever and keeps its memory. The call must compute on one thread, as others would spin waiting.
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
FAILED = re.compile(r"[^/\n]*:\d+: .*|what\(\): .*")  # messages of ggml and C++
_ONE = threading.Lock()  # a process has one callback and one handler
_WAITING: list[Any] = []  # keeps functions alive in which threads wait


class Aborted(RuntimeError):
    """The library would have ended the process with this message."""


def in_thread(work: Callable[[], T], name: str) -> tuple[threading.Thread, Future[T]]:
    """Return a thread that will call `work`, to be started, and the future of the result."""
    made = Future[T]()

    def run() -> None:
        try:
            made.set_result(work())
        except BaseException as error:
            made.set_exception(error)

    return threading.Thread(target=run, name=name, daemon=True), made


def without_abort(functions: Any, work: Callable[[], T]) -> T:
    """Return `work()`, which calls the library `functions`; raise Aborted instead of aborting."""
    if not hasattr(functions, "ggml_set_abort_callback"):
        return work()

    def stop(message: bytes) -> None:
        text = message.decode(errors="replace")
        if threading.get_ident() != thread.ident:  # another call failed
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
        finally:  # an interrupt does not stop the call
            wait([made])
            functions.ggml_set_abort_callback(before)
    return made.result()


def require_debugger() -> None:
    """Put a debugger that does nothing into PATH if there is no real one.

    Before it aborts, ggml forks, and the child runs gdb, or without gdb calls exit(). Exit handlers
    such as PyTorch's may wait forever for threads that the child lacks, and ggml waits for it.
    """
    if shutil.which("gdb") or shutil.which("lldb"):
        return
    folder = Path(tempfile.mkdtemp(prefix="logitsieve-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "gdb").symlink_to(shutil.which("true") or sys.executable)
    os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), str(folder)])


def without_sigabrt(work: Callable[[], T]) -> T:
    """Return `work()`; raise Aborted where it would call abort()."""
    require_debugger()
    libc, before = ctypes.CDLL(None), ctypes.create_string_buffer(ACTION_BYTES)
    libc.signal.restype, libc.signal.argtypes = ctypes.c_void_p, (ctypes.c_int, ctypes.c_void_p)

    def stop(number: int) -> None:
        if threading.get_ident() != thread.ident:  # another call failed
            libc.sigaction(signal.SIGABRT, before, None)
            getattr(libc, "raise")(number)  # takes effect when this returns
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
        finally:  # an interrupt does not stop the call
            wait([made])
            libc.sigaction(signal.SIGABRT, before, None)
        if isinstance(made.exception(), Aborted):
            found = FAILED.search(said())
            raise Aborted(found[0] if found else "without a message")
    return made.result()


@contextmanager
def _printed() -> Iterator[Callable[[], str]]:
    """Hold back what the process prints; yield a function that returns and discards stderr.

    ggml prints why it aborts, and its debugger prints all threads.
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
