"""Without a GPU, "cuda" is PyTorch's CPU device, unless TRITON_INTERPRET=0 asks for the GPU.

It is read when a kernel is defined, so it is set before any test is imported. Tests that launch
kernels have the marker `gpu`: then they run under Triton's interpreter.
"""

import asyncio
import gc
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from importlib import import_module
from importlib.util import find_spec
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import settings

os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # a core for each worker of pytest-xdist

TESTS = Path(__file__).parent
LARGE = 3000  # tests
# Those of the marker `system` that take longest, so that no worker ends long after the others.
LONGEST = ("test_packaging", "test_extras", "test_clients", "test_run", "test_memory", "test_flood")

settings.register_profile("quick", max_examples=50, deadline=None, derandomize=True)
settings.register_profile("exhaustive", max_examples=300, deadline=None)


def pytest_configure(config: pytest.Config) -> None:
    quick = "not exhaustive" in config.option.markexpr
    settings.load_profile("quick" if quick else "exhaustive")


@pytest.hookimpl(tryfirst=True)
def pytest_collection(session: pytest.Session) -> None:
    """Let every second worker import all tests from the last: each compiles half of all sources.

    What cannot be imported is said when it is collected.
    """
    worker = getattr(session.config, "workerinput", {"workerid": "gw0"})
    everything = [Path(each).absolute() for each in session.config.args] == [TESTS]
    if everything and int(worker["workerid"].removeprefix("gw")) % 2:
        for path in sorted(TESTS.rglob("test_*.py"), reverse=True):
            with suppress(Exception, pytest.skip.Exception):
                import_module(".".join(path.relative_to(TESTS.parent).with_suffix("").parts))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put other processes last, since they load kernels that tests before them compile.

    The network, which needs no kernel, comes first.
    """

    def place(item: pytest.Item) -> int:
        if item.path.stem == "test_resolve":
            return 0
        if item.get_closest_marker("system") is None:
            return 1
        return 2 if item.path.stem in LONGEST else 3

    items.sort(key=place)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let workers of a large run share the compiling of kernels; what is imported is no garbage."""
    gc.freeze()
    worker = getattr(session.config, "workerinput", None)
    if worker and len(session.items) > LARGE:
        from tests.kernels.ready import compile_share

        compile_share(int(worker["workerid"].removeprefix("gw")), worker["workercount"])


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an async test in an event loop of its own."""
    if not iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True


@pytest.fixture(scope="session", autouse=True)
def constants() -> Iterator[None]:
    """Builds time heads for 4 ms, and no compilation is said."""
    from tests.brief import brief_timings

    with patch("logitsieve.kernels.compile.PATIENCE_S", 1e6), brief_timings():
        yield


@pytest.fixture(scope="session")
def share_kernels() -> Callable[[Path], Path]:
    """Give a folder the compiled kernels of the default cache, and nothing else of it."""
    from logitsieve.kernels.compile import default_cache, kernels_in
    from logitsieve.utils.own_files import make_own

    kernels = kernels_in(default_cache())
    make_own(kernels)

    def share(folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / kernels.name).symlink_to(kernels)
        return folder

    return share


@pytest.fixture(scope="session", autouse=True)
def kernel_cache(
    tmp_path_factory: pytest.TempPathFactory, share_kernels: Callable[[Path], Path]
) -> Iterator[Path]:
    """The default cache of tests: without verified indexes, with the user's compiled kernels."""
    cache = share_kernels(tmp_path_factory.mktemp("cache"))
    with (
        patch("logitsieve.kernels.compile.default_cache", lambda: cache),
        patch("logitsieve.index.index.default_cache", lambda: cache),
    ):
        yield cache


@pytest.fixture(scope="session")
def loop() -> Iterator[Any]:
    """An event loop in a thread of its own."""
    from tests.server.running import Loop

    with closing(Loop()) as loop:
        yield loop


@pytest.fixture(scope="session")
def make_gguf(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Make a small model as GGUF by the options of `write_model`; equal ones give the same file."""
    pytest.importorskip("gguf", reason="gguf is not installed: pip install '.[llamacpp]'")
    from tests.llamacpp.small_model import write_model

    folder, made = tmp_path_factory.mktemp("gguf"), dict[str, Path]()

    def make(**options: object) -> Path:
        name = str(sorted(options.items()))
        if name not in made:
            path = folder / f"{len(made)}.gguf"
            made[name] = write_model(path, **options)  # type: ignore[arg-type]
        return made[name]

    return make


@pytest.fixture(scope="session")
def gguf_index(make_gguf: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of the full and the head sketch of the small model, small@1."""
    from logitsieve.llamacpp import GgufModel
    from tests.client.test_llamacpp import write_gguf_index

    folder = tmp_path_factory.mktemp("models")
    return write_gguf_index(GgufModel(make_gguf()), folder / "small" / "1")


@pytest.fixture(scope="session")
def llama_wheel() -> None:
    """Skips where the wheel of llama.cpp is absent."""
    pytest.importorskip("xllamacpp", reason="xllamacpp is not installed: pip install '.[llamacpp]'")


@pytest.fixture(params=["llamacpp", "ik"])
def engine(request: pytest.FixtureRequest, llama_wheel: None) -> str:
    """Each engine by its name; skips where ik_llama.cpp is absent."""
    if request.param == "ik" and find_spec("ik_llama_cpp") is None:
        pytest.skip("ik_llama_cpp is not installed: pip install '.[ik]'")
    return str(request.param)


@pytest.fixture
def always_a_sketch(monkeypatch: pytest.MonkeyPatch) -> None:
    """For few words all logits may take less time, and the sketch is left out."""

    def widest(choices: Iterable[int], us: Callable[[int], float]) -> int:
        return max(choices, key=lambda first: (first, us(first)))

    monkeypatch.setattr("logitsieve.index_builder.fit.sketch.fastest", widest)
