"""Measure an index's heads on this machine: calibration.json (docs/building.md has its fields)."""

import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from typing import Any

from logitsieve.api.results import Float32
from logitsieve.evaluation import Judge, cpu_name, us_per_row
from logitsieve.evaluation.operating_points import KS
from logitsieve.evaluation.precision import Each, in_turn
from logitsieve.evaluation.timing import BATCHES, TIMED_K
from logitsieve.heads import Head
from logitsieve.index.calibration import CONTEXT_ROWS, pack_contexts
from logitsieve.index_builder.beam_steps import StepJudge, Steps, step_us
from logitsieve.index_builder.contexts import Contexts
from logitsieve.utils.options import Progress, no_progress

TIMED_ROWS = 2048
JUDGED_ROWS = 256
STEP_ROWS = 250  # of a block of beam steps
STEP_PRODUCTS = 1 << 37  # multiplications with W to judge beam steps
JUDGED_LOGITS = 1 << 28  # of all rows, unless a target needs more
LIBRARIES = ("logitsieve", "numpy", "numba", "faiss-cpu")

Entry = dict[str, Any]  # of `points`
Times = dict[int, float]  # rows a call -> microseconds a row


class Bench:
    def __init__(
        self,
        exact: Head,
        heldout: Contexts,
        vocab_size: int,
        progress: Progress = no_progress,
        each: Each = in_turn,
    ) -> None:
        """Report ("judge", contexts done, all) while `exact` answers; `each` runs all calls."""
        done = 0

        def blocks() -> Iterator[Float32]:
            nonlocal done
            for block in heldout.blocks(JUDGED_ROWS):
                yield block
                if done < heldout.rows:  # later passes are the heads'
                    done += len(block)
                    progress("judge", done, heldout.rows)

        self._exact: Head = exact
        self._judge = Judge(exact, blocks, tuple(k for k in KS if k <= vocab_size), each)
        self._hidden = heldout.sample(TIMED_ROWS)
        self._k = min(TIMED_K, vocab_size)
        self._heldout, self._vocab_size = heldout, vocab_size

    def times(self, head: Head) -> Times:
        """Return its times; those of `exact` where this answers for it."""
        return {
            batch: self._exact_times[batch] if _is_exact(head, batch) else self._us(head, batch)
            for batch in BATCHES
        }

    @cached_property
    def _exact_times(self) -> Times:
        return {batch: self._us(self._exact, batch) for batch in BATCHES}

    def _us(self, head: Head, batch: int) -> float:
        return us_per_row(head, self._hidden, self._k, batch)

    def entries(self, head: Head, times: Times) -> list[Entry]:
        judged = self._judge.evaluate(head)
        timed = max(k for k in judged.scanned if k <= TIMED_K)
        point = {
            "head": {"name": head.name, "knobs": dict(head.knobs)},
            "precision": {str(k): asdict(precision) for k, precision in judged.precision.items()},
            "uneven": any(precision.uneven for precision in judged.precision.values()),
            "mass_kept": judged.mass_kept,
            "max_error": head.max_error,
        }
        read = judged.scanned[timed]
        steps = None
        if head.name == "exact" or head.estimates_log_z:
            steps = self._steps.judge(head)
        return [
            {
                **point,
                "rows": batch,
                "us_per_row": us,
                "candidates": self._vocab_size if _is_exact(head, batch) else read,
                **({"steps": self._step(head, steps, batch)} if steps else {}),
            }
            for batch, us in times.items()
        ]

    @cached_property
    def _steps(self) -> StepJudge:
        most = max(1, STEP_PRODUCTS // (self._vocab_size * self._heldout.dim))
        stride = -(-self._heldout.rows // most)
        return StepJudge(self._exact, islice(self._heldout.blocks(STEP_ROWS), 0, None, stride))

    def _step(self, head: Head, steps: Steps, batch: int) -> Entry:
        return {**steps._asdict(), "us_per_row": step_us(head, self._hidden, batch)}

    def calibration(self, points: list[Entry]) -> dict[str, Any]:
        return {
            "machine": machine(),
            "heldout_rows": self._heldout.rows,
            "points": points,
            "contexts": pack_contexts(self._heldout.sample(CONTEXT_ROWS)),
        }


def _is_exact(head: Head, batch: int) -> bool:
    """Check that calls of so many rows take the code of `exact`."""
    return head.name == "exact" or (head.proves and batch > head.most_rows)


def calibrate(
    heads: Sequence[Head],
    heldout: Contexts,
    vocab_size: int,
    progress: Progress,
    each: Each = in_turn,
) -> dict[str, Any]:
    """Measure heads, the first of which is `exact`."""
    bench = Bench(heads[0], heldout, vocab_size, progress, each)
    points: list[Entry] = []
    for done, head in enumerate(heads, start=1):
        points += bench.entries(head, bench.times(head))
        progress("calibrate", done, len(heads))
    return bench.calibration(points)


def machine() -> dict[str, str]:
    facts = {
        "cpu": cpu_name(),
        "threads": "1",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
    }
    for library in LIBRARIES:
        try:
            facts[library] = version(library)
        except PackageNotFoundError:
            continue  # a checkout that is not installed has no version
    return facts
