"""The steps of a build, in order: label, fit, calibrate, write.

Shape letters: D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import faiss
import torch

from logitsieve.api.errors import InvalidRequest
from logitsieve.heads import Softmax
from logitsieve.index import HeadEntry, Index, open_index, write_index
from logitsieve.index_builder.calibrate import calibrate
from logitsieve.index_builder.config import BuildConfig
from logitsieve.index_builder.contexts import Contexts
from logitsieve.index_builder.fit_certified import fit_certified
from logitsieve.index_builder.fit_frequency import fit_frequency
from logitsieve.index_builder.fit_graph import fit_graph
from logitsieve.index_builder.fit_ivf import fit_ivf
from logitsieve.index_builder.fit_lsh import fit_lsh
from logitsieve.index_builder.fit_screen import checked_target, fit_screen, label_depth
from logitsieve.index_builder.fit_svd import fit_svd
from logitsieve.index_builder.fitting import FitInputs, FitResult, heads_of, part_name, prepare
from logitsieve.utils.options import Progress

Fit = Callable[[FitInputs, BuildConfig, Progress], FitResult]

FITS: dict[str, Fit] = {  # one that others fall back on comes before them
    "certified": fit_certified,
    "screen": fit_screen,
    "svd": fit_svd,
    "lsh": fit_lsh,
    "graph": fit_graph,
    "ivf": fit_ivf,
    "frequency": fit_frequency,
}

EXACT = "exact"

__all__ = ["FITS", "BuildInputs", "check_heads", "checked_target", "run"]


@dataclass(frozen=True, kw_only=True, eq=False)
class BuildInputs:
    """Everything to build from, checked."""

    softmax: Softmax
    train: Contexts
    heldout: Contexts
    vocabulary: Sequence[str] | None
    heads: tuple[str, ...]
    target: Mapping[str, float] | None
    best_effort: bool
    config: BuildConfig


def run(inputs: BuildInputs, out: Path, scratch: Path, progress: Progress) -> Index:
    """Fit every head, measure it, write the index and open it.

    The numbers were checked when they were read, so opening does not check them again.
    """
    config, softmax = inputs.config, inputs.softmax
    with _threads(config.threads):
        fitted = _fit(inputs, scratch, progress)
    heads = heads_of(softmax, fitted)
    compared = {
        other: heads_of(softmax, {**fitted, name: replace(result, arrays=arrays)})[name]
        for name, result in fitted.items()
        for other, arrays in result.compared.items()
    }
    calibration = calibrate(heads, compared, inputs.heldout, softmax.vocab_size, progress)
    calibration["fit"] = {name: {"rounds": list(fit.history)} for name, fit in fitted.items()}
    entries = {EXACT: HeadEntry()}
    for name, result in fitted.items():
        entries[name] = HeadEntry(part_name(name), heads[name].knobs, result.summary)
    progress("write", 0, 1)
    write_index(
        out,
        softmax=softmax,
        parts={part_name(name): result.arrays for name, result in fitted.items()},
        heads=entries,
        default_head=next((name for name in inputs.heads if name != EXACT), EXACT),
        vocabulary=inputs.vocabulary,
        config={**asdict(config), "target_precision": dict(inputs.target or {})},
        seeds={"seed": config.seed},
        calibration=calibration,
        finite=("softmax",),
    )
    progress("write", 1, 1)
    return open_index(out, threads=config.threads, verify="sizes")


def _fit(inputs: BuildInputs, scratch: Path, progress: Progress) -> dict[str, FitResult]:
    learned = [name for name in FITS if name in inputs.heads]
    if not learned:
        return {}
    config, softmax = inputs.config, inputs.softmax
    basis = prepare(
        heads_of(softmax, {}, config.threads)[EXACT],
        softmax,
        inputs.train,
        inputs.heldout,
        label_depth(config, inputs.target, softmax.vocab_size),
        config,
        scratch,
        progress,
        target=inputs.target,
        best_effort=inputs.best_effort,
    )
    fitted: dict[str, FitResult] = {}
    for name in learned:
        fitted[name] = FITS[name](replace(basis, fitted=dict(fitted)), config, progress)
    return fitted


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
    """`exact` and then `heads`, each once; InvalidRequest names an unknown one."""
    for name in heads:
        if name != EXACT and name not in FITS:
            raise InvalidRequest("heads", repr(name), ", ".join([EXACT, *FITS]))
    if targeted and "screen" not in heads:
        raise InvalidRequest("target_precision", "no head to search", "heads with 'screen'")
    return tuple(dict.fromkeys([EXACT, *heads]))
