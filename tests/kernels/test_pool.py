import subprocess
import sys

import pytest

from logitsieve.kernels.pool import ROWS_A_SLICE, hand_over_ns, run_slices


@pytest.mark.parametrize("rows", [1, 15, 16, 33, 100])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_slices_partition_the_rows(rows: int, threads: int) -> None:
    seen: list[tuple[int, int]] = []

    def call(start: int, stop: int) -> int:
        seen.append((start, stop))
        return start

    results = run_slices(call, rows, threads)
    assert results == sorted(results)
    assert sorted(row for start, stop in seen for row in range(start, stop)) == list(range(rows))
    assert len(seen) <= max(1, min(threads, rows // ROWS_A_SLICE))


@pytest.mark.system
def test_a_forked_child_gets_threads_of_its_own() -> None:
    script = (
        "import os\n"
        "from logitsieve.kernels.pool import run_slices\n"
        "assert sum(run_slices(lambda a, b: b - a, 64, 2)) == 64\n"
        "child = os.fork()\n"
        "if not child:\n"
        "    os._exit(0 if sum(run_slices(lambda a, b: b - a, 64, 2)) == 64 else 1)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_a_hand_over_is_measured_once() -> None:
    found = hand_over_ns()
    assert 100 < found < 1e9
    assert hand_over_ns() == found
