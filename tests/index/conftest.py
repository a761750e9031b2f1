from pathlib import Path

import pytest

from tests.index.samples import write_tiny


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """A fresh tiny index, model demo, version 1."""
    return write_tiny(tmp_path / "demo" / "1")
