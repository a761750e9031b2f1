"""Every kernel compiles for real GPUs: a compiler may refuse what the interpreter takes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu.test_registry import KERNELS

ROOT = Path(__file__).parents[2]
SHARED_MEMORY = 99 * 1024  # of every GPU


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "arguments",
    [
        ["90"],
        pytest.param(["80", "all"], marks=pytest.mark.exhaustive),
        pytest.param(["90", "all"], marks=pytest.mark.exhaustive),
    ],
    ids=" ".join,
)
def test_kernels_compile(arguments: list[str], tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.gpu.compile_plans", *arguments]
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    compiled = [line.split() for line in done.stdout.splitlines()]
    missing = set(KERNELS) - {name for name, _, _ in compiled}
    assert not missing, f"tests/gpu/compile_plans.py launches no {missing}"
    assert all(int(shared) <= SHARED_MEMORY for _, shared, _ in compiled)
