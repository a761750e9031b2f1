"""The steps of a build, in order: label, fit, calibrate, write.

Shape letters: D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

import faiss
import numpy as np
import torch

from logitsieve.api.errors import InvalidRequest
from logitsieve.evaluation import us_per_row
from logitsieve.evaluation.timing import TIMED_K
from logitsieve.heads import HEADS, Head, Softmax
from logitsieve.heads.assembly import make_heads
from logitsieve.index import HeadEntry, Index, open_index, write_index
from logitsieve.index_builder.calibrate import TIMED_ROWS, calibrate
from logitsieve.index_builder.cascade import Timer
from logitsieve.index_builder.config import BuildConfig
from logitsieve.index_builder.contexts import Contexts
from logitsieve.index_builder.fit_certified import fit_certified
from logitsieve.index_builder.fit_frequency import fit_frequency
from logitsieve.index_builder.fit_graph import fit_graph
from logitsieve.index_builder.fit_inputs import FitInputs, prepare
from logitsieve.index_builder.fit_ivf import fit_ivf
from logitsieve.index_builder.fit_lsh import fit_lsh
from logitsieve.index_builder.fit_screen import fit_screen
from logitsieve.index_builder.fit_svd import fit_svd
from logitsieve.index_builder.target import checked_target, depths, search_screen
from logitsieve.utils.options import Progress

Arrays = Mapping[str, np.ndarray]


class Fitted(Protocol):
    """What a fit makes of the material."""

    @property
    def arrays(self) -> Arrays:
        """The head's part of the index."""
        ...

    @property
    def compared(self) -> Mapping[str, Arrays]:
        """Other arrays for the same head, by a name for what they are: measured, not stored."""
        ...

    @property
    def summary(self) -> Mapping[str, float]:
        """What was chosen, for the manifest: the same on every machine."""
        ...

    @property
    def knobs(self) -> Mapping[str, float]:
        """The operating point that the head is stored at."""
        ...

    @property
    def history(self) -> Sequence[Mapping[str, float]]:
        """One entry a round, for the report."""
        ...


Fit = Callable[[FitInputs, BuildConfig, Progress], Fitted]

FITS: dict[str, Fit] = {
    "certified": fit_certified,
    "screen": fit_screen,
    "svd": fit_svd,
    "lsh": fit_lsh,
    "graph": fit_graph,
    "ivf": fit_ivf,
    "frequency": fit_frequency,
}

EXACT = "exact"
PROMISED = 0.01  # guard of a screen that promises a precision

__all__ = ["FITS", "Inputs", "check_heads", "checked_target", "run"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Inputs:
    """Everything to build from, checked."""

    softmax: Softmax
    train: Contexts
    heldout: Contexts
    vocabulary: Sequence[str] | None
    heads: tuple[str, ...]
    target: Mapping[str, float] | None
    best_effort: bool
    config: BuildConfig


def run(inputs: Inputs, out: Path, scratch: Path, progress: Progress) -> Index:
    """Fit every head, measure it, write the index and open it."""
    config, softmax = inputs.config, inputs.softmax
    with _threads(config.threads):
        exact = make_heads(HEADS, softmax, {}, {}, config.threads)[EXACT]
        fitted = _fit(inputs, exact, scratch, progress)
    parts = {_part(name): fit.arrays for name, fit in fitted.items()}
    knobs = {name: fit.knobs for name, fit in fitted.items()}
    if {"certified", "screen"} <= knobs.keys():
        knobs["screen"] = {**knobs["screen"], "prescreen": _prescreen(inputs, parts, knobs)}
    heads = make_heads(HEADS, softmax, parts, knobs, 1)
    compared = {
        other: make_heads(HEADS, softmax, {**parts, _part(name): arrays}, knobs, 1)[name]
        for name, fit in fitted.items()
        for other, arrays in fit.compared.items()
    }
    calibration = calibrate(heads, compared, inputs.heldout, softmax.vocab_size, progress)
    calibration["fit"] = {name: {"rounds": list(fit.history)} for name, fit in fitted.items()}
    entries = {EXACT: HeadEntry()}
    for name, fit in fitted.items():
        entries[name] = HeadEntry(_part(name), heads[name].knobs, fit.summary)
    progress("write", 0, 1)
    write_index(
        out,
        softmax=softmax,
        parts=parts,
        heads=entries,
        default_head=next((name for name in inputs.heads if name != EXACT), EXACT),
        vocabulary=inputs.vocabulary,
        config={**asdict(config), "target_precision": dict(inputs.target or {})},
        seeds={"seed": config.seed},
        calibration=calibration,
    )
    progress("write", 1, 1)
    return open_index(out, threads=config.threads)


def _fit(inputs: Inputs, exact: Head, scratch: Path, progress: Progress) -> dict[str, Fitted]:
    """In the order of FITS: what may be the fallback of others comes before them."""
    learned = [name for name in FITS if name in inputs.heads]
    if not learned:
        return {}
    config, softmax = inputs.config, inputs.softmax
    depth = config.labels
    if inputs.target is not None:
        depth = max(depths(inputs.target, config, softmax.vocab_size))
    material = prepare(
        exact, softmax, inputs.train, inputs.heldout, depth, config, scratch, progress
    )
    fitted: dict[str, Fitted] = {}
    for name in learned:
        fit = FITS[name]
        guarded = config
        if name == "screen" and inputs.target is not None:
            fit = _search(inputs, inputs.target, fitted)
            guarded = replace(config, guard=PROMISED if config.guard is None else config.guard)
        fitted[name] = fit(material, guarded, progress)
    return fitted


def _search(inputs: Inputs, target: Mapping[str, float], fitted: Mapping[str, Fitted]) -> Fit:
    """A fit of `screen` that meets `target`, timed with the fallback that it will have.

    Times are those of the public `topk`, one row a call, one thread.
    """
    hidden = inputs.heldout.sample(TIMED_ROWS)
    k = min(TIMED_K, inputs.softmax.vocab_size)
    parts = {_part(name): fit.arrays for name, fit in fitted.items()}
    knobs = {name: fit.knobs for name, fit in fitted.items()}

    def microseconds(arrays: Arrays, point: Mapping[str, float]) -> float:
        made = make_heads(
            HEADS, inputs.softmax, {**parts, "screen": arrays}, {**knobs, "screen": point}, 1
        )
        return us_per_row(made["screen"], hidden, k, 1)

    proving = make_heads(HEADS, inputs.softmax, parts, knobs, 1)
    fallback = next(head for head in reversed(proving.values()) if head.proves)
    timer: Timer = microseconds
    return partial(
        search_screen,
        target=target,
        timer=timer,
        fallback_us=us_per_row(fallback, hidden, k, 1),
        best_effort=inputs.best_effort,
    )


def _prescreen(
    inputs: Inputs, parts: Mapping[str, Arrays], knobs: Mapping[str, Mapping[str, float]]
) -> int:
    """Whether the screen is faster where it bounds its candidates first, measured; 0 or 1."""
    screen = make_heads(HEADS, inputs.softmax, parts, knobs, 1)["screen"]
    hidden, k = inputs.heldout.sample(TIMED_ROWS), min(TIMED_K, inputs.softmax.vocab_size)
    plain, bounded = (us_per_row(screen.with_knobs(prescreen=on), hidden, k, 1) for on in (0, 1))
    return int(bounded < plain)


def _part(name: str) -> str:
    part = HEADS[name].part
    assert part is not None, f"{name} has no arrays to fit"
    return part.name


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """torch and faiss on `count` threads, for equal sums on every machine; put back afterwards."""
    before = torch.get_num_threads(), faiss.omp_get_max_threads()
    torch.set_num_threads(count)
    faiss.omp_set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before[0])
        faiss.omp_set_num_threads(before[1])


def check_heads(heads: Sequence[str], targeted: bool) -> tuple[str, ...]:
    """`exact` and what is asked for besides; InvalidRequest names an unknown head."""
    for name in heads:
        if name != EXACT and name not in FITS:
            raise InvalidRequest("heads", repr(name), ", ".join([EXACT, *FITS]))
    if targeted and "screen" not in heads:
        raise InvalidRequest("target_precision", "no head to search", "heads with 'screen'")
    return tuple(dict.fromkeys([EXACT, *heads]))
