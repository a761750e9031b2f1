"""Without a GPU, "cuda" is PyTorch's CPU device, unless TRITON_INTERPRET=0 asks for the GPU.

It is read when a kernel is defined, so it is set before any test is imported. Tests that launch
kernels have the marker `gpu`: then they run under Triton's interpreter.
"""

import asyncio
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from inspect import iscoroutinefunction
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import settings

os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # a core for each worker of pytest-xdist

SLOWEST = 10  # files, at the end
LARGE = 3000  # tests

settings.register_profile("quick", max_examples=50, deadline=None, derandomize=True)
settings.register_profile("exhaustive", max_examples=300, deadline=None)


def pytest_configure(config: pytest.Config) -> None:
    quick = "not exhaustive" in config.option.markexpr
    settings.load_profile("quick" if quick else "exhaustive")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put other processes last, since they load kernels that tests before them compile."""
    items.sort(key=lambda item: item.get_closest_marker("system") is not None)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Let each worker of a large run compile its share of the kernels, not all that it needs."""
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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the files that took longest, fixtures included, where many were run."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.partition("::")[0]] += report.duration
    if len(seconds) > SLOWEST:
        terminalreporter.section(f"{SLOWEST} slowest of {len(seconds)} files")
        for file in sorted(seconds, key=lambda file: -seconds[file])[:SLOWEST]:
            terminalreporter.write_line(f"{seconds[file]:7.1f} s  {file}")


@pytest.fixture(scope="session", autouse=True)
def constants() -> Iterator[None]:
    """Head `certified` draws by bounds, however small a softmax is; builds time heads for 4 ms."""
    from logitsieve.evaluation import us_per_row

    with (
        patch("logitsieve.heads.certified.PRODUCTS_A_DRAW", 0),
        patch.object(us_per_row, "__defaults__", (60, 4_000_000)),
    ):
        yield


@pytest.fixture(scope="session")
def share_kernels() -> Callable[[Path], Path]:
    """Give a folder the compiled kernels of the default cache, and nothing else of it."""
    from logitsieve.kernels.compile import default_cache, kernels_in

    kernels = kernels_in(default_cache())
    kernels.mkdir(parents=True, exist_ok=True)

    def share(folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / kernels.name).symlink_to(kernels)
        return folder

    return share


@pytest.fixture(scope="session")
def kernel_cache(
    tmp_path_factory: pytest.TempPathFactory, share_kernels: Callable[[Path], Path]
) -> Path:
    """A fresh cache of verified indexes that shares its compiled kernels with the default cache."""
    return share_kernels(tmp_path_factory.mktemp("cache"))


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
def llama_wheel() -> None:
    """Skips where the wheel of llama.cpp is absent."""
    pytest.importorskip("xllamacpp", reason="xllamacpp is not installed: pip install '.[llamacpp]'")
