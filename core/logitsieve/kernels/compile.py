"""One decorator for every entry kernel, and the cache of compiled code.

An entry kernel has one explicit signature and is called directly, without Numba's dispatcher. The
caller vouches for the types.
"""

from __future__ import annotations

import hashlib
import logging
import pickle
import sys
import warnings
from collections.abc import Callable
from functools import cache, cached_property, wraps
from pathlib import Path
from threading import Timer
from typing import Any, cast

import numba
from numba.core import serialize, sigutils
from numba.core.ccallback import CFunc
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, CompileResult
from numba.extending import intrinsic

from logitsieve.utils.own_files import read_own, write_own

log = logging.getLogger(__name__)


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
        """Ignore it: only machine code has an environment."""


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
# Compiled beforehand and only read: an image has some.
SHIPPED = Path(sys.prefix) / "share" / "logitsieve"
PATIENCE_S = 2.0
COMPILING = "compiling kernels, once on this machine: one or two minutes on idle cores"

_warned: set[Path] = set()
_cache: dict[str, Path] = {}  # "folder": once it is decided


class Kernel:
    """A function of arrays and numbers, compiled once for one signature. Releases the GIL."""

    def __init__(self, function: Callable[..., Any], signature: str) -> None:
        self._dispatcher = numba.njit(nogil=True, **_ENTRY)(function)
        self._dispatcher._cache = _Cache(function)
        self._arguments = sigutils.normalize_signature(signature)[0]  # type: ignore[no-untyped-call]
        self.entry = cache(self._compile)

    def _compile(self) -> Callable[..., Any]:
        return cast(Callable[..., Any], self._dispatcher.compile(self._arguments))

    @property
    def address(self) -> int:
        """The address of the compiled code, in Numba's calling convention."""
        self.entry()
        result = self._dispatcher.overloads[self._arguments]
        return cast(int, result.library.get_pointer_to_function(result.fndesc.llvm_func_name))

    def __call__(self, *arguments: Any) -> Any:
        return self.entry()(*arguments)


class CFunction:
    def __init__(self, function: Callable[..., Any], signature: Any) -> None:
        self._function, self._signature = function, sigutils.normalize_signature(signature)  # type: ignore[no-untyped-call]

    @cached_property
    def _compiled(self) -> CFunc:
        compiled: Any = CFunc(self._function, self._signature, {}, {})
        compiled._cache = _Cache(self._function)
        compiled.compile()
        return cast(CFunc, compiled)

    @property
    def address(self) -> int:
        return cast(int, self._compiled.address)


class _Cache:
    """The machine code of one function, shared by all copies of the same sources.

    Numba's own cache, with the same methods, goes by a file's path. Here a folder is named by the
    sources, a file by the function, its types and the CPU: all writers write the same.
    """

    cache_path = None  # Numba shows it

    def __init__(self, function: Callable[..., Any]) -> None:
        assert function.__closure__ is None, "the name says nothing about it"
        self._function, self._root = function, _root_of(function)
        self._patience = Timer(0, _say_once)  # of one compilation

    def load_overload(self, types: Any, context: Any) -> Any:
        context.refresh()
        name = self._file(types, context.codegen())
        for folder in (_folder(), SHIPPED):
            try:
                content = read_own(folder, name)
            except OSError as error:
                if isinstance(error, PermissionError):
                    _warn_of(folder, str(error.filename), str(error.strerror))
                continue
            if (whole := _whole(name, content)) is not None:
                parts = pickle.loads(whole)
                return CompileResult._rebuild(context, *parts)  # type: ignore[no-untyped-call]
        self._patience = Timer(PATIENCE_S, _say_once)
        self._patience.daemon = True
        self._patience.start()
        return None

    def save_overload(self, types: Any, result: Any) -> None:
        self._patience.cancel()
        assert not result.library.has_dynamic_globals, "addresses of this process"
        name = self._file(types, result.codegen)
        content = serialize.dumps(result._reduce())  # type: ignore[no-untyped-call]
        try:
            write_own(_folder(), name, _digest(name, content) + content)
        except OSError as error:
            _warn_once(_folder(), error)

    def _file(self, types: Any, codegen: Any) -> Path:
        """Return its place in a cache."""
        function = self._function
        line = function.__code__.co_firstlineno
        key = (function.__module__, function.__qualname__, line, types, codegen.magic_tuple())
        digest = hashlib.sha256(repr(key).encode()).hexdigest()
        return kernels_in(Path(), self._root) / f"{function.__name__}-{digest[:16]}"


def _digest(name: Path, content: bytes) -> bytes:
    """Return the 32 bytes before the content of a file, which bind it to its place."""
    return hashlib.sha256(f"{name}\n".encode() + content).digest()


def _whole(name: Path, content: bytes) -> bytes | None:
    """Return what was written as `name`, or None for what a crash or a disk damaged."""
    digest, rest = content[:32], content[32:]
    return rest if digest == _digest(name, rest) else None


def kernel(signature: str) -> Callable[[Callable[..., Any]], Kernel]:
    """Decorate an entry kernel with Numba's `signature`, without the return type."""
    return lambda function: Kernel(function, signature)


def emits(signature_of: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Decorate emit(builder, *values), which emits an operation's LLVM.

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
    """Keep machine code from now on under `folder` (None: the default)."""
    _cache["folder"] = folder or default_cache()


def _folder() -> Path:
    return _cache.setdefault("folder", default_cache())


def kernels_in(folder: Path, root: Path = _ROOT) -> Path:
    within = folder / f"kernels-{_sources_digest(_ROOT)}"
    return within if root == _ROOT else within / f"{root.name}-{_sources_digest(root)}"


def _warn_once(folder: Path, error: OSError) -> None:
    """Warn of the first file that `folder` cannot keep."""
    if folder not in _warned:
        _warned.add(folder)
        _warn_of(folder, str(error.filename or folder), str(error.strerror))


@cache
def _warn_of(folder: Path, file: str, reason: str) -> None:
    message = f"kernels are compiled again, as {folder} cannot keep them: {file}: {reason}"
    warnings.warn(message, RuntimeWarning, stacklevel=4)


@cache
def _say_once() -> None:
    log.warning(COMPILING)


def _root_of(function: Callable[..., Any]) -> Path:
    packages = function.__module__.split(".")[:-1]
    depth = packages[::-1].index("kernels") if "kernels" in packages else 0
    return Path(function.__code__.co_filename).parents[depth]


@cache
def _sources_digest(root: Path) -> str:
    versions = f"{numba.__version__} {sys.implementation.cache_tag}"
    digest = hashlib.sha256(versions.encode())
    for source in sorted(root.rglob("*.py")):
        text = source.read_bytes()
        digest.update(f"{source.relative_to(root)} {len(text)}\n".encode() + text)
    return digest.hexdigest()[:16]
