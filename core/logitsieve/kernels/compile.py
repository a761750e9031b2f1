"""One decorator for every entry kernel, and the cache of compiled code.

An entry kernel has one explicit signature and is called directly, without Numba's dispatcher. The
caller vouches for the types.
"""

from __future__ import annotations

import hashlib
import pickle
import sys
import tempfile
import warnings
from collections.abc import Callable
from functools import cache, cached_property, wraps
from pathlib import Path
from typing import Any, cast

import numba
from numba.core import serialize, sigutils
from numba.core.ccallback import CFunc
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler, CompileResult
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

    def load_overload(self, types: Any, context: Any) -> Any:
        context.refresh()
        name = self._file(types, context.codegen())
        for folder in (_folder(), SHIPPED):
            try:
                parts = pickle.loads((kernels_in(folder, self._root) / name).read_bytes())
            except (OSError, EOFError, pickle.UnpicklingError):  # a crash left a part of it
                continue
            return CompileResult._rebuild(context, *parts)  # type: ignore[no-untyped-call]
        return None

    def save_overload(self, types: Any, result: Any) -> None:
        assert not result.library.has_dynamic_globals, "addresses of this process"
        file = kernels_in(_folder(), self._root) / self._file(types, result.codegen)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=file.parent, prefix=".tmp-") as made:
                new = Path(made) / file.name
                new.write_bytes(serialize.dumps(result._reduce()))  # type: ignore[no-untyped-call]
                new.replace(file)
        except OSError as error:
            _warn_once(f"kernels are compiled anew at every start: {_folder()}: {error.strerror}")

    def _file(self, types: Any, codegen: Any) -> str:
        function = self._function
        line = function.__code__.co_firstlineno
        key = (function.__module__, function.__qualname__, line, types, codegen.magic_tuple())
        return f"{function.__name__}-{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}"


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


@cache
def _warn_once(message: str) -> None:
    warnings.warn(message, RuntimeWarning, stacklevel=3)


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
