"""One decorator for every entry kernel, and the folder where compiled code is kept.

An entry kernel has one explicit signature, so that the machine code is called directly: Numba's
own dispatcher looks at the type of each argument of each call. The caller vouches for the types.
"""

from __future__ import annotations

import hashlib
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
from numba.core import config, sigutils

# For what entry kernels call. Nothing else calls it, so that it needs no wrappers, of which each
# costs some 20 ms to compile.
_BARE: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
inline = numba.njit(**_BARE)
# For long functions with one caller: they become part of it before anything is compiled. An
# `inline` function is optimised by itself too, with everything below it, though nobody calls it so.
splice = numba.njit(inline="always")

_ENTRY: dict[str, Any] = {"no_cfunc_wrapper": True}

_ANEW = "kernels are compiled anew at every start"

_cache: dict[str, Path | None] = {}  # "folder": where to keep machine code, once that is decided


class Kernel:
    """A function of arrays and numbers, compiled once for one signature. Releases the GIL."""

    def __init__(self, function: Callable[..., Any], signature: str) -> None:
        self._dispatcher = numba.njit(nogil=True, **_ENTRY)(function)
        self._home = Path(function.__code__.co_filename).parent
        self._arguments = sigutils.normalize_signature(signature)[0]  # type: ignore[no-untyped-call]
        self.entry = cache(self._compile)

    def _compile(self) -> Callable[..., Any]:
        if "folder" not in _cache:
            use_cache(None)
        if (folder := _cache["folder"]) is not None:
            own = folder / f"{self._home.name}-{_sources_digest(self._home)}"
            config.CACHE_DIR = str(own)  # type: ignore[attr-defined]  # set at run time
            self._dispatcher.enable_caching()
        return self._compiled()

    def _compiled(self) -> Callable[..., Any]:
        entry: Callable[..., Any]
        try:
            entry = self._dispatcher.compile(self._arguments)
        except OSError as error:  # compiled, but where it should be kept is no room
            _warn_once(f"{_ANEW}: {_cache['folder']}: {error.strerror}")
            entry = self._dispatcher.compile(self._arguments)  # what there is by now
        return entry

    def __call__(self, *arguments: Any) -> Any:
        """Call the machine code, compiling it first where that is still to be done."""
        return self.entry()(*arguments)


def kernel(signature: str) -> Callable[[Callable[..., Any]], Kernel]:
    """Decorate an entry kernel; `signature` is Numba's, without the return type."""
    return lambda function: Kernel(function, signature)


def default_cache() -> Path:
    """Where compiled kernels and verified digests are remembered unless another folder is named."""
    return Path("~/.cache/logitsieve").expanduser()


def use_cache(folder: Path | None) -> None:
    """Keep machine code compiled from now on under `folder` (None: the default folder).

    With nothing writable there, kernels are compiled in memory at every start: one warning says so.
    """
    target = (folder or default_cache()) / f"kernels-{_sources_digest(Path(__file__).parent)}"
    try:
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=target):
            pass
    except OSError as error:
        _warn_once(f"{_ANEW}: {target}: {error.strerror}")
        _cache["folder"] = None
    else:
        _cache["folder"] = target


@cache
def _warn_once(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=3)


@cache
def _sources_digest(home: Path) -> str:
    """Numba notices a change of an entry kernel's own file only; this one covers a folder's.

    Kernels elsewhere may use those of this folder: their digest is a second one, below its.
    """
    digest = hashlib.sha256(numba.__version__.encode())
    for source in sorted(home.rglob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]
