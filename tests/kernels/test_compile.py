"""Where compiled kernels are kept, and what happens where nothing can be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from logitsieve.kernels.compile import use_cache

SCRIPT = """
import sys
from pathlib import Path
import numpy as np
from logitsieve.kernels.compile import use_cache
use_cache(Path(sys.argv[1]))
from logitsieve.kernels.csr import csr_log_sum_exp
out = np.empty(1, np.float32)
csr_log_sum_exp(np.array([0, 2]), np.zeros(2, np.float32), out)
print(sum(csr_log_sum_exp._dispatcher.stats.cache_hits.values()), out[0])
"""


def run_script(folder: Path) -> list[str]:
    command = [sys.executable, "-W", "error", "-c", SCRIPT, str(folder)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()


def test_a_second_process_loads_what_the_first_compiled(tmp_path: Path) -> None:
    assert run_script(tmp_path) == ["0", "0.6931472"]
    assert run_script(tmp_path) == ["1", "0.6931472"]


def test_an_unwritable_folder_costs_one_warning_and_no_error(tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("not a folder")
    with pytest.warns(RuntimeWarning, match="compiled anew at every start"):
        use_cache(occupied)
    use_cache(tmp_path)
    assert list(tmp_path.glob("kernels-*"))
