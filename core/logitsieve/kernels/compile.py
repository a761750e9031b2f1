"""One decorator for every entry kernel, and the cache of compiled code.

An entry kernel has one explicit signature and is called without Numba's dispatcher, so nothing
checks the types of its arguments.
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
    """Code that is optimised only in the kernels that link it, which saves a third of the time."""

    def _finalize_final_module(self) -> None:
        self._verify_declare_only_symbols()  # type: ignore[no-untyped-call]
        self._finalized = True

    @property
    def codegen(self) -> _Linked:
        return self  # for `set_env`

    def _optimize_final_module(self) -> None:
        """Leave this to the kernel."""

    def set_env(self, name: str, env: object) -> None:
        """Do nothing, as only machine code has an environment."""


class _InlineCompiler(Compiler):
    def compile_extra(self, func: Callable[..., Any]) -> Any:
        codegen = self.state.targetctx.codegen()
        self.state.library = _Linked(codegen, func.__qualname__)  # type: ignore[no-untyped-call]
        return super().compile_extra(func)  # type: ignore[no-untyped-call]


# For functions that only kernels call.
_BARE: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
inline = numba.njit(pipeline_class=_InlineCompiler, **_BARE)
# For long functions with one caller, which are inlined before compilation.
inline_once = numba.njit(inline="always")

_ROOT = Path(__file__).parent
_ENTRY: dict[str, Any] = {"no_cfunc_wrapper": True}
# Machine code that came with an image; it is only read.
SHIPPED = Path(sys.prefix) / "share" / "logitsieve"
PATIENCE_S = 2.0
COMPILING = "compiling kernels, once on this machine: one or two minutes on idle cores"

_warned: set[Path] = set()
_cache: dict[str, Path] = {}  # "folder", once decided


class Kernel:
    """A function compiled once, for one signature. It releases the GIL."""

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

    Numba's own cache depends on the path of a source file. Here a digest of the sources names a
    folder, and the function, its types and the CPU name a file.
    """

    cache_path = None  # Numba prints it

    def __init__(self, function: Callable[..., Any]) -> None:
        assert function.__closure__ is None, "the name says nothing about it"
        self._function, self._root = function, _root_of(function)
        self._patience = Timer(0, _say_once)

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
        function = self._function
        line = function.__code__.co_firstlineno
        key = (function.__module__, function.__qualname__, line, types, codegen.magic_tuple())
        digest = hashlib.sha256(repr(key).encode()).hexdigest()
        return kernels_in(Path(), self._root) / f"{function.__name__}-{digest[:16]}"


def _digest(name: Path, content: bytes) -> bytes:
    return hashlib.sha256(f"{name}\n".encode() + content).digest()


def _whole(name: Path, content: bytes) -> bytes | None:
    digest, rest = content[:32], content[32:]
    return rest if digest == _digest(name, rest) else None


def kernel(signature: str) -> Callable[[Callable[..., Any]], Kernel]:
    """Decorate an entry kernel with Numba's signature of its arguments."""
    return lambda function: Kernel(function, signature)


def emits(signature_of: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Make an operation for kernels of emit(builder, *values), which emits its LLVM.

    `signature_of` takes Numba's types of the arguments. A list becomes a tuple.
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
    return Path("~/.cache/logitsieve").expanduser()


def use_cache(folder: Path | None) -> None:
    _cache["folder"] = folder or default_cache()


def _folder() -> Path:
    return _cache.setdefault("folder", default_cache())


def kernels_in(folder: Path, root: Path = _ROOT) -> Path:
    within = folder / f"kernels-{_sources_digest(_ROOT)}"
    return within if root == _ROOT else within / f"{root.name}-{_sources_digest(root)}"


def _warn_once(folder: Path, error: OSError) -> None:
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
