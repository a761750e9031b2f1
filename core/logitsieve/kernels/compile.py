"""One decorator for every entry kernel, and the folder of compiled code.

An entry kernel has one explicit signature and is called directly: Numba's own dispatcher looks at
the type of each argument. The caller vouches for the types.
"""

from __future__ import annotations

import hashlib
import tempfile
import warnings
from collections.abc import Callable
from functools import cache, cached_property, wraps
from pathlib import Path
from typing import Any, cast

import numba
from numba.core import config, sigutils
from numba.core.ccallback import CFunc
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler
from numba.extending import intrinsic


class _Linked(JITCodeLibrary):
    """Code that kernels link in and optimise; by itself it would take a third of their time."""

    def _finalize_final_module(self) -> None:
        self._verify_declare_only_symbols()  # type: ignore[no-untyped-call]
        self._finalized = True

    @property
    def codegen(self) -> _Linked:
        return self  # for `set_env`

    def _optimize_final_module(self) -> None:
        """Leave it to the kernel that this is linked into."""

    def set_env(self, name: str, env: object) -> None:
        """Do nothing: only machine code has an environment."""


class _InlineCompiler(Compiler):
    def compile_extra(self, func: Callable[..., Any]) -> Any:
        codegen = self.state.targetctx.codegen()
        self.state.library = _Linked(codegen, func.__qualname__)  # type: ignore[no-untyped-call]
        return super().compile_extra(func)  # type: ignore[no-untyped-call]


# For functions that kernels call: without wrappers.
_BARE: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
inline = numba.njit(pipeline_class=_InlineCompiler, **_BARE)
# For long functions with one caller: part of it before anything is compiled.
inline_once = numba.njit(inline="always")

_ROOT = Path(__file__).parent
_ENTRY: dict[str, Any] = {"no_cfunc_wrapper": True}

_ANEW = "kernels are compiled anew at every start"

_cache: dict[str, Path | None] = {}  # "folder": of machine code, once that is decided


class Kernel:
    """A function of arrays and numbers, compiled once for one signature. Releases the GIL."""

    def __init__(self, function: Callable[..., Any], signature: str) -> None:
        self._dispatcher = numba.njit(nogil=True, **_ENTRY)(function)
        self._root = _root_of(function)
        self._arguments = sigutils.normalize_signature(signature)[0]  # type: ignore[no-untyped-call]
        self.entry = cache(self._compile)

    def _compile(self) -> Callable[..., Any]:
        _keep(self._dispatcher, self._root)
        try:
            entry: Callable[..., Any] = self._dispatcher.compile(self._arguments)
        except OSError as error:  # compiled, but the cache could not be written
            _warn_of(error)
            entry = self._dispatcher.compile(self._arguments)  # compiled by now
        return entry

    def __call__(self, *arguments: Any) -> Any:
        return self.entry()(*arguments)


class CFunction:
    """A function of pointers and numbers that kernels call by its address, compiled once."""

    def __init__(self, function: Callable[..., Any], signature: Any) -> None:
        self._function, self._signature = function, sigutils.normalize_signature(signature)  # type: ignore[no-untyped-call]

    @cached_property
    def _compiled(self) -> CFunc:
        compiled = CFunc(self._function, self._signature, {}, {})
        _keep(compiled, _root_of(self._function))
        try:
            compiled.compile()
        except OSError as error:  # compiled, but the cache could not be written
            _warn_of(error)
            compiled = CFunc(self._function, self._signature, {}, {})
            compiled.compile()
        return compiled

    @property
    def address(self) -> int:
        return cast(int, self._compiled.address)


def kernel(signature: str) -> Callable[[Callable[..., Any]], Kernel]:
    """Decorate an entry kernel with Numba's `signature`, without the return type."""
    return lambda function: Kernel(function, signature)


def emits(signature_of: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Decorate a function emit(builder, *values), which emits the LLVM of an operation.

    `signature_of` takes Numba's types of the arguments. A list is a tuple, None no value.
    """

    def decorate(emit: Callable[..., Any]) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
            result = emit(builder, *values)
            if isinstance(result, list):
                return context.make_tuple(builder, signature.return_type, result)
            return context.get_dummy_value() if result is None else result

        @wraps(emit)  # Numba asks for the names of the arguments
        def typed(_: Any, *kinds: Any) -> Any:
            return signature_of(*kinds), codegen

        return intrinsic(typed)

    return decorate


def default_cache() -> Path:
    """Folder of compiled kernels and verified digests, unless another is named."""
    return Path("~/.cache/logitsieve").expanduser()


def use_cache(folder: Path | None) -> None:
    """Keep machine code from now on under `folder` (None: the default), or warn once."""
    target = (folder or default_cache()) / f"kernels-{_sources_digest(_ROOT)}"
    try:
        target.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=target):
            pass
    except OSError as error:
        _warn_once(f"{_ANEW}: {target}: {error.strerror}")
        _cache["folder"] = None
    else:
        _cache["folder"] = target


def _keep(function: Any, root: Path) -> None:
    """Cache `function`, in a folder named by the sources below `root`."""
    if "folder" not in _cache:
        use_cache(None)
    if (folder := _cache["folder"]) is not None:
        if root != _ROOT:  # which the folder's own name covers
            folder /= f"{root.name}-{_sources_digest(root)}"
        config.CACHE_DIR = str(folder)  # type: ignore[attr-defined]  # set at run time
        function.enable_caching()


def _warn_of(error: OSError) -> None:
    _warn_once(f"{_ANEW}: {_cache['folder']}: {error.strerror}")


@cache
def _warn_once(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=3)


def _root_of(function: Callable[..., Any]) -> Path:
    """Return the folder of a function's package `kernels`, else the folder of its file."""
    packages = function.__module__.split(".")[:-1]
    depth = packages[::-1].index("kernels") if "kernels" in packages else 0
    return Path(function.__code__.co_filename).parents[depth]


@cache
def _sources_digest(root: Path) -> str:
    """Hash Numba's version and every source: its own cache only sees an entry kernel's file."""
    digest = hashlib.sha256(numba.__version__.encode())
    for source in sorted(root.rglob("*.py")):
        digest.update(source.read_bytes())
    return digest.hexdigest()[:16]
