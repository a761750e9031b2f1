"""Calls of llama.cpp in which a failed assertion raises, and does not end the process.

ggml calls a function of ours with the message, and abort() after it. Ours never returns: the call
has a thread of its own, which then waits for ever with what it allocated. So it must compute on one
thread: others would wait for that one, and spin.
"""

import ctypes
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

T = TypeVar("T")

_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_char_p)
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
