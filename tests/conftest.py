"""Kernels for a GPU run under Triton's interpreter, unless TRITON_INTERPRET=0 asks for the GPU.

It is read when a kernel is defined, so it is set before any test is imported. Tests that launch
such kernels have the marker `gpu`: the interpreter takes its time.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("TRITON_INTERPRET", "1")

TESTS = Path(__file__).parent
LAUNCHING = ("gpu", "server/models/test_devices.py", "benchmarks/test_gpu.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what lies in those folders and files."""
    for item in items:
        if any(item.path.is_relative_to(TESTS / place) for place in LAUNCHING):
            item.add_marker("gpu")


@pytest.fixture(scope="session")
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A fresh cache of verified indexes that shares its compiled kernels with the default cache."""
    from logitsieve.kernels import compile as compiling

    compiling.use_cache(None)
    shared = compiling._cache["folder"]
    folder = tmp_path_factory.mktemp("cache")
    if shared is not None:
        (folder / shared.name).symlink_to(shared)
    return folder
