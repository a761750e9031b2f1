"""Builds of tests time heads for 4 ms: `python -m tests.brief MODULE ...` runs a module so."""

import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns
from unittest.mock import patch

TIMED = CALLS, LIMIT_NS = 60, 4_000_000


@contextmanager
def brief_timings() -> Iterator[None]:
    from logitsieve.evaluation.timing import least_us, us_per_row

    with (
        patch("logitsieve.index_builder.calibrate.BATCH_NS", LIMIT_NS),
        patch.object(least_us, "__defaults__", (*TIMED, perf_counter_ns)),
        patch.object(us_per_row, "__defaults__", (*TIMED, perf_counter_ns)),
    ):
        yield


if __name__ == "__main__":
    del sys.argv[0]
    with brief_timings():
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
