"""Without a GPU, "cuda" is PyTorch's CPU device, unless TRITON_INTERPRET=0 asks for the GPU.

It is read when a kernel is defined, so it is set before any test is imported. Tests that launch
kernels have the marker `gpu`: then they run under Triton's interpreter.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

os.environ.setdefault("TRITON_INTERPRET", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # a core for each worker of pytest-xdist

SLOWEST = 10  # files, at the end


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what waits for processes first."""
    items.sort(key=lambda item: item.get_closest_marker("system") is None)


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
def drawing_by_bounds() -> Iterator[None]:
    """Head `certified` draws by bounds, however small a softmax is."""
    with patch("logitsieve.heads.certified.PRODUCTS_A_DRAW", 0):
        yield


@pytest.fixture(scope="session")
def share_kernels() -> Callable[[Path], Path]:
    """Give a folder the compiled kernels of the default cache, and nothing else of it."""
    from logitsieve.kernels import compile as compiling

    compiling.use_cache(None)
    kernels = compiling._cache["folder"]

    def share(folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        if kernels is not None:
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
