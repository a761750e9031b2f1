"""Measures an index's heads on this machine, for calibration.json (see docs/building.md)."""

import platform
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from itertools import islice
from time import thread_time_ns
from typing import Any, NamedTuple

import numpy as np

from logitsieve.api.results import Float32, Int32
from logitsieve.decoding.sampler import BEST, DRAWING
from logitsieve.evaluation import Judge, cpu_name, us_per_row
from logitsieve.evaluation.operating_points import KS
from logitsieve.evaluation.precision import Each, in_turn, lower_bound
from logitsieve.evaluation.timing import BATCHES, LIMIT_NS, TIMED_K, least_us
from logitsieve.heads import Head, ScreenHead
from logitsieve.heads._base.kernel_head import BestWithLogZ
from logitsieve.index.calibration import CONTEXT_ROWS, pack_contexts
from logitsieve.index_builder.contexts import Contexts
from logitsieve.kernels.topk.merge import VALUE, best_pairs
from logitsieve.utils.options import Progress, no_progress

BEAMS = 5
PAIRS = 10  # two for each beam, as one of them may end it
TIMED_ROWS = 2048
BATCH_NS = LIMIT_NS // 2
JUDGED_ROWS = 256
STEP_ROWS = 250
STEP_PRODUCTS = 1 << 37
JUDGED_LOGITS = 1 << 28  # most logits to judge heads, unless there is a target
NEVER = -1.0  # the `escalate` that leaves no row to the fallback
LOG_Z_ERRORS = (1.0, 0.3, 0.2, 0.1, 0.05, 0.03, 0.02, 0.01)
LIBRARIES = ("logitsieve", "numpy", "numba")
Entry = dict[str, Any]
Times = dict[int, float]


class Steps(NamedTuple):
    """The precision of a head's beam steps: of (hypothesis, id) pairs, and of log Z."""

    mean: float  # share of the pairs that an exact step has, too
    low: float  # lower 95 % bound of the mean
    same: float  # share of groups with exactly the pairs of an exact step
    log_z_error: float  # root mean square, in nats


class StepJudge:
    """Exact beam steps of groups of BEAMS contexts."""

    def __init__(self, full: Head, blocks: Iterable[Float32]) -> None:
        groups = (block for block in blocks if len(block) >= BEAMS)
        self._truths = [(each, full.best_with_log_z(each, _pairs_of(full))) for each in groups]

    def judge(self, head: Head) -> Steps | None:

        shares, same, errors = [], [], []
        for block, truth in self._truths:
            found = head.best_with_log_z(block, truth.ids.shape[1])
            ours, theirs = _pairs(found), _pairs(truth)
            equal = (ours[:, :, None, :] == theirs[:, None, :, :]).all(axis=3)
            shares.append(equal.any(axis=2).mean(axis=1))
            same.append((ours == theirs).all(axis=(1, 2)))
            errors.append(found.log_z[:, VALUE] - truth.log_z[:, VALUE])
        share_G = np.concatenate([*shares, np.empty(0)])
        if not share_G.size:
            return None
        error = float(np.sqrt((np.concatenate(errors) ** 2).mean()))
        mean, right = float(share_G.mean()), float(np.concatenate(same).mean())
        return Steps(mean, lower_bound(share_G), right, error)


def step_us(head: Head, hidden_states: Float32, batch: int, limit_ns: int) -> float:
    k = _pairs_of(head)
    head.best_with_log_z(hidden_states[:1], k)
    return least_us(
        lambda rows: head.best_with_log_z(rows, k),
        hidden_states,
        batch,
        limit_ns=limit_ns,
        clock=thread_time_ns,
    )


def _pairs_of(head: Head) -> int:
    return min(PAIRS, head.vocab_size)


def _pairs(best: BestWithLogZ) -> Int32:
    groups, k = len(best.ids) // BEAMS, best.ids.shape[1]
    rows = groups * BEAMS
    parents, places = np.empty((groups, k), np.int32), np.empty((groups, k), np.int32)
    best_pairs(
        np.zeros(rows), np.ones(rows), np.arange(rows), best.logits[:rows].copy(),
        np.full(rows, k), best.log_z[:rows].copy(), parents, places, np.empty(groups, np.bool_),
    )  # fmt: skip
    owners = np.arange(groups)[:, None] * BEAMS + parents
    return np.stack([parents, best.ids[owners, places]], axis=2)


class Bench:
    def __init__(
        self,
        full: Head,
        heldout: Contexts,
        vocab_size: int,
        progress: Progress = no_progress,
        each: Each = in_turn,
    ) -> None:
        """Judge by the answers of `full`; `each` runs the calls."""
        done = 0

        def blocks() -> Iterator[Float32]:
            nonlocal done
            for block in heldout.blocks(JUDGED_ROWS):
                yield block
                if done < heldout.rows:  # only `full` makes progress here
                    done += len(block)
                    progress("judge", done, heldout.rows)

        self._full: Head = full
        self._judge = Judge(full, blocks, tuple(k for k in KS if k <= vocab_size), each)
        self._hidden = heldout.sample(TIMED_ROWS)
        self._heldout, self._vocab_size = heldout, vocab_size

    def times(self, head: Head) -> Times:
        return {batch: self._timed(head, TIMED_K, batch) for batch in BATCHES}

    def _timed(self, head: Head, k: int, batch: int) -> float:
        k = min(k, self._vocab_size)
        return us_per_row(head, self._hidden, k, batch, limit_ns=BATCH_NS, clock=thread_time_ns)

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
        read, draws = judged.scanned[timed], head.name in DRAWING
        steps = None
        if head.name == "full" or head.estimates_log_z:
            steps = self._steps.judge(head)
        return [
            {
                **point,
                "rows": batch,
                "us_per_row": us,
                "candidates": read,
                **({"steps": self._step(head, steps, batch)} if steps else {}),
                **({"draw_us": self._timed(head, BEST, batch)} if draws else {}),
            }
            for batch, us in times.items()
        ]

    def stepping(self, head: Head, least: float) -> Head | None:
        """Return the screen with the knobs for the fastest beam steps as precise as `least`."""
        found: dict[float, Head] = {}
        for escalate in dict.fromkeys((NEVER, head.knobs["escalate"])):
            for error in LOG_Z_ERRORS:
                tried = head.with_knobs(escalate=escalate, log_z_error=error)
                steps = self._steps.judge(tried)
                if steps is not None and steps.low >= least:
                    found[step_us(tried, self._hidden, BATCHES[-1], BATCH_NS)] = tried
                    break
        return found[min(found)] if found else None

    @cached_property
    def _steps(self) -> StepJudge:
        most = max(1, STEP_PRODUCTS // (self._vocab_size * self._heldout.dim))
        stride = -(-self._heldout.rows // most)
        return StepJudge(self._full, islice(self._heldout.blocks(STEP_ROWS), 0, None, stride))

    def _step(self, head: Head, steps: Steps, batch: int) -> Entry:
        return {**steps._asdict(), "us_per_row": step_us(head, self._hidden, batch, BATCH_NS)}

    def calibration(self, points: list[Entry]) -> dict[str, Any]:
        return {
            "machine": machine(),
            "heldout_rows": self._heldout.rows,
            "points": points,
            "contexts": pack_contexts(self._heldout.sample(CONTEXT_ROWS)),
        }


def calibrate(
    heads: Sequence[Head],
    heldout: Contexts,
    vocab_size: int,
    progress: Progress,
    each: Each = in_turn,
    steps: float | None = None,
) -> dict[str, Any]:
    """Measure heads, the first of them `full`, and screens for beam steps of precision `steps`."""
    bench = Bench(heads[0], heldout, vocab_size, progress, each)
    points: list[Entry] = []
    for done, head in enumerate(heads, start=1):
        points += bench.entries(head, bench.times(head))
        if steps is not None and isinstance(head, ScreenHead) and head.estimates_log_z:
            other = bench.stepping(head, steps)
            if other is not None and other.knobs != head.knobs:
                points += bench.entries(other, bench.times(other))
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
            continue
    return facts
