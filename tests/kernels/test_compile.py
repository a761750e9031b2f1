"""Where compiled kernels are kept, and what happens where nothing can be."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from logitsieve.kernels.compile import use_cache
from tests.synthetic import make_head, make_hidden, make_softmax

SCRIPT = """
import sys
from pathlib import Path
import numpy as np
from logitsieve.kernels.compile import use_cache
use_cache(Path(sys.argv[1]))
from logitsieve.kernels.topk.csr import csr_log_sum_exp
out = np.empty(1, np.float32)
csr_log_sum_exp(np.array([0, 2]), np.zeros(2, np.float32), out)
print(sum(csr_log_sum_exp._dispatcher.stats.cache_hits.values()), out[0])
"""


def run_script(folder: Path, script: str = SCRIPT, **environment: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, str(folder)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )
    return done.stdout.split()


def test_a_second_process_loads_what_the_first_compiled(tmp_path: Path) -> None:
    assert run_script(tmp_path) == ["0", "0.6931472"]
    assert run_script(tmp_path) == ["1", "0.6931472"]


ROUTED = """
import sys
from pathlib import Path
import numpy as np
from logitsieve.kernels.compile import use_cache
use_cache(Path(sys.argv[1]))
from tests.synthetic import make_head, make_hidden, make_softmax
print(*make_head("screen", make_softmax()).topk(make_hidden(3), 4).ids.ravel())
"""


def test_kernels_compile_for_the_cpu_that_is_named(tmp_path: Path) -> None:
    """A cache shared between machines is made for the least of them; answers are the same."""
    expected = make_head("screen", make_softmax()).topk(make_hidden(3), 4).ids.ravel()
    generic = run_script(tmp_path, ROUTED, NUMBA_CPU_NAME="generic", PYTHONPATH=str(Path.cwd()))
    assert generic == [str(number) for number in expected]


def test_an_unwritable_folder_costs_one_warning_and_no_error(tmp_path: Path) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("not a folder")
    with pytest.warns(RuntimeWarning, match="compiled anew at every start"):
        use_cache(occupied)
    use_cache(tmp_path)
    assert list(tmp_path.glob("kernels-*"))
