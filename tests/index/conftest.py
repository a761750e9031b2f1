from __future__ import annotations

from pathlib import Path

import pytest

from tests.index.samples import write_tiny


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A fresh tiny index, model demo, version 1."""
    return write_tiny(tmp_path / "demo" / "1")


@pytest.fixture(scope="session")
def kernel_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where this run keeps its compiled kernels and what it remembers of verified indexes."""
    return tmp_path_factory.mktemp("kernels")
