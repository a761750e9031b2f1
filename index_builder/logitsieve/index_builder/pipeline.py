"""The steps of a build, in order: label, fit, calibrate, write.

Shape letters: D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import faiss
import numpy as np
import torch
from threadpoolctl import threadpool_limits

from logitsieve.api.errors import InvalidRequest
from logitsieve.evaluation import us_per_row
from logitsieve.evaluation.precision import BLOCKS
from logitsieve.evaluation.timing import TIMED_K
from logitsieve.heads.certified import GRADES
from logitsieve.index import HeadEntry, Index, open_index, write_index
from logitsieve.index_builder.calibrate import JUDGED_LOGITS, TIMED_ROWS, calibrate
from logitsieve.index_builder.data.contexts import Contexts
from logitsieve.index_builder.fit.certified import fit_certified, fit_without_contexts
from logitsieve.index_builder.fit.frequency import fit_frequency
from logitsieve.index_builder.fit.graph import fit_graph
from logitsieve.index_builder.fit.ivf import fit_ivf
from logitsieve.index_builder.fit.levels import fit_levels
from logitsieve.index_builder.fit.lsh import fit_lsh
from logitsieve.index_builder.fit.screen import (
    checked_target,
    fit_screen,
    label_depth,
    refuse_unprovable,
)
from logitsieve.index_builder.fit.svd import fit_svd
from logitsieve.index_builder.fitting import (
    BuildInputs,
    FitInputs,
    FitResult,
    each_by,
    fastest_proving,
    heads_of,
    part_name,
    sample_rows,
    shared_head,
)
from logitsieve.index_builder.labels import exact_labels

FITS: dict[
    str, Callable[[FitInputs], FitResult]
] = {  # one that others fall back on comes before them
    "certified": fit_certified,
    "screen": fit_screen,
    "svd": fit_svd,
    "lsh": fit_lsh,
    "graph": fit_graph,
    "ivf": fit_ivf,
    "frequency": fit_frequency,
}

EXACT = "exact"
HEADS_BUILT = (EXACT, "screen", "certified")
WITHOUT_CONTEXTS = (EXACT, "certified")
EVALUATED = 10  # answers at which held-out precision is judged, at most

__all__ = ["FITS", "BuildInputs", "check_heads", "checked_target", "refuse_unprovable", "run"]


def run(
    inputs: BuildInputs,
    names: Sequence[str],
    vocabulary: Sequence[str] | None,
    out: Path,
    scratch: Path,
) -> Index:
    """Fit the heads of these names, measure each, write the index and open it.

    The numbers were checked when they were read, so opening does not check them again.
    """
    config, softmax, progress = inputs.config, inputs.softmax, inputs.progress
    with _threads(config.threads):
        fitted, fallback = _fit(inputs, names, scratch)
        heads = heads_of(softmax, fitted, fallback=fallback)
        shared = [shared_head(name, heads[name], softmax, fitted, fallback) for name in heads]
        each = each_by(inputs.workers, shared)
        calibration = None
        if inputs.heldout.rows:
            judged = inputs.heldout
            if not inputs.target:
                judged = judged.spread(max(BLOCKS, JUDGED_LOGITS // softmax.vocab_size), BLOCKS)
            calibration = calibrate(heads, judged, softmax.vocab_size, progress, each)
    entries = {EXACT: HeadEntry()}
    for name, result in fitted.items():
        entries[name] = HeadEntry(part_name(name), heads[name].knobs, result.summary)
    progress("write", 0, 1)
    write_index(
        out,
        softmax=softmax,
        parts={part_name(name): result.arrays for name, result in fitted.items()},
        heads=entries,
        default_head=next((name for name in names if name != EXACT), EXACT),
        vocabulary=vocabulary,
        config={
            **asdict(config),
            "target_precision": dict(inputs.target or {}),
            **({"fallback": fallback} if fallback else {}),
        },
        seeds={"seed": config.seed},
        calibration=calibration,
        finite=("softmax",),
    )
    progress("write", 1, 1)
    return open_index(out, threads=config.threads, verify="sizes")


def _fit(
    inputs: BuildInputs, names: Sequence[str], scratch: Path
) -> tuple[dict[str, FitResult], str]:
    """Return the fitted heads, and the name of the proving one that answers what others leave."""
    fitted: dict[str, FitResult] = {}
    fallback = ""
    if "certified" in names and (levels := fit_levels(inputs)):
        fitted = {"certified": levels} | {grade: levels.shared() for grade in GRADES}
        fallback = _proving(inputs, fitted)
    elif "certified" in names and not inputs.train.rows:
        fitted, fallback = {"certified": fit_without_contexts(inputs)}, "certified"
    learned = [name for name in FITS if name in names and name not in fitted]
    if learned:
        basis = prepare(inputs, label_depth(inputs), scratch)
        for name in learned:
            fitted[name] = FITS[name](replace(basis, fitted=dict(fitted), fallback=fallback))
            if name == "certified":
                fallback = _proving(inputs, fitted)
    return fitted, fallback


def _proving(inputs: BuildInputs, fitted: Mapping[str, FitResult]) -> str:
    """The head that answers what others leave: the fastest on held-out contexts, if there are any.

    A reproducible build takes `certified`.
    """
    if inputs.config.reproducible or not inputs.heldout.rows:
        return "certified"
    hidden, k = inputs.heldout.sample(TIMED_ROWS), min(TIMED_K, inputs.vocab_size)
    heads = heads_of(inputs.softmax, fitted)
    return fastest_proving(heads, lambda head: us_per_row(head, hidden, k, 1))


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """torch, faiss and BLAS on `count` threads, for equal sums everywhere; put back afterwards."""
    before = torch.get_num_threads(), faiss.omp_get_max_threads()
    torch.set_num_threads(count)
    faiss.omp_set_num_threads(count)
    try:
        with threadpool_limits(count, "blas"):
            yield
    finally:
        torch.set_num_threads(before[0])
        faiss.omp_set_num_threads(before[1])


def prepare(inputs: BuildInputs, depth: int, scratch: Path) -> FitInputs:
    """Label every context with its exact top `depth`, and draw the sample that fits in memory."""
    vocab_size, config, train = inputs.vocab_size, inputs.config, inputs.train
    depth = min(depth, vocab_size)
    judged = min(max(depth, EVALUATED), vocab_size)
    exact = shared_head(EXACT, heads_of(inputs.softmax, {})[EXACT], inputs.softmax)

    def label(contexts: Contexts, depth: int, file: str, stage: str) -> np.ndarray:
        report, path = partial(inputs.progress, stage), scratch / file
        return exact_labels(exact, contexts, depth, vocab_size, path, report, inputs.workers)

    rows_S = sample_rows(train.rows, (config.sample_mib << 20) // (4 * train.dim), config.seed)
    return FitInputs(
        **vars(inputs),
        labels=label(train, depth, "labels-fitted.npy", "label"),
        heldout_labels=label(inputs.heldout, judged, "labels-heldout.npy", "label held-out"),
        sample=train.take(rows_S),
        sample_rows=rows_S,
    )


def check_heads(
    heads: Sequence[str] | None, targeted: bool, contexts: bool = True
) -> tuple[str, ...]:
    """`exact` and then `heads`, each once; None are those of a build with or without contexts.

    InvalidRequest names an unknown one, or one that contexts are needed for.
    """
    if heads is None:
        heads = HEADS_BUILT if contexts else WITHOUT_CONTEXTS
    for name in heads:
        if name != EXACT and name not in FITS:
            raise InvalidRequest("heads", repr(name), ", ".join([EXACT, *FITS]))
        if not contexts and name not in WITHOUT_CONTEXTS:
            raise InvalidRequest("contexts", "nothing", f"contexts to fit the head {name} to")
    if targeted and "screen" not in heads:
        raise InvalidRequest("target_precision", "no head to search", "heads with 'screen'")
    return tuple(dict.fromkeys([EXACT, *heads]))
