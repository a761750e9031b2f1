"""The steps of a build, in order: label, fit, calibrate, write."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Float32, Int32
from logitsieve.evaluation.precision import BLOCKS
from logitsieve.heads import Head
from logitsieve.heads.certified import GRADES, EstimatedHead
from logitsieve.index import HeadEntry, Index, open_index, write_index
from logitsieve.index_builder.calibrate import JUDGED_LOGITS, calibrate
from logitsieve.index_builder.data.arrays import reserve
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
    EXACT,
    BuildInputs,
    FitInputs,
    FitResult,
    bytes_read,
    each_by,
    part_name,
    sample_rows,
    shared_heads,
)
from logitsieve.index_builder.screen.cascade import TARGETS
from logitsieve.index_builder.workers import Shared
from logitsieve.utils.environment import name_in_errors

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

HEADS_BUILT = (EXACT, "screen", "certified")
WITHOUT_CONTEXTS = (EXACT, "certified")
EVALUATED = 10  # answers at which held-out precision is judged, at most
LABEL_ROWS = 1024  # contexts of a block

__all__ = ["FITS", "BuildInputs", "check_heads", "checked_target", "refuse_unprovable", "run"]


def run(
    inputs: BuildInputs,
    names: Sequence[str],
    vocabulary: Sequence[str] | None,
    out: Path,
    scratch: Path,
) -> Index:
    """Fit the heads of these names, measure each, write the index and open it unchecked."""
    config, softmax, progress = inputs.config, inputs.softmax, inputs.progress
    with _threads(config.threads):
        fitted, fallback = _fit(inputs, names, scratch)
        shared = shared_heads(softmax, fitted, fallback)
        heads = {name: each.value for name, each in shared.items()}
        each = each_by(inputs.workers, shared.values())
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
        default_head=next((name for name in names if name in fitted), EXACT),
        vocabulary=vocabulary,
        config={
            **asdict(config),
            "target_precision": dict(inputs.target or {}),
            "fallback": fallback,
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
    """Fit the heads of these names; return them, and the one that answers for others.

    With levels a screen is fitted only if it was asked for: `estimated` needs no contexts.
    """
    fitted: dict[str, FitResult] = {}
    fallback = EXACT
    if "certified" in names and (levels := fit_levels(inputs)):
        fitted = {"certified": levels}
        fitted |= {grade: FitResult(levels.arrays, {}, {}) for grade in GRADES}
        fallback = EstimatedHead.name
        if not inputs.named and inputs.target is None:
            names = [name for name in names if name != "screen"]
    elif "certified" in names and not inputs.train.rows:
        fitted, fallback = {"certified": fit_without_contexts(inputs)}, "certified"
    learned = [name for name in FITS if name in names and name not in fitted]
    if not learned:
        return fitted, fallback
    prepared = prepare(inputs, label_depth(inputs), scratch)
    for name in learned:
        basis = replace(prepared, fitted=dict(fitted), fallback=fallback)
        if name == "screen" and fallback in GRADES and inputs.target is not None:
            basis = replace(basis, rest=_found_by_fallback(basis, scratch))
        fitted[name] = FITS[name](basis)
        if name == "certified":
            fallback = _proving(inputs, fitted)
    return fitted, fallback


def _found_by_fallback(inputs: FitInputs, scratch: Path) -> np.ndarray:
    """Return [H, K] True for the held-out labels that the fallback finds."""
    K = min(max(TARGETS.values()), inputs.vocab_size)
    head = shared_heads(inputs.softmax, inputs.fitted)[inputs.fallback]
    file = scratch / "fallback.npy"
    found_HK = exact_labels(inputs, head, inputs.heldout, K, file, "judge the fallback")
    return np.asarray(found_HK == inputs.heldout_labels[:, :K])


def _proving(inputs: BuildInputs, fitted: Mapping[str, FitResult]) -> str:
    """Return the head that answers for others: certified, or `exact` for a flat softmax."""
    if not inputs.heldout.rows:
        return "certified"
    return min(("certified", EXACT), key=lambda name: bytes_read(inputs, fitted, name))


@contextmanager
def _threads(count: int) -> Iterator[None]:
    """Limit torch, faiss and BLAS to `count` threads, so that sums are equal everywhere."""
    import faiss
    import torch

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
    exact = shared_heads(inputs.softmax, {})[EXACT]
    rows_S = sample_rows(train.rows, (config.sample_mib << 20) // (4 * train.dim), config.seed)
    return FitInputs(
        **vars(inputs),
        labels=exact_labels(inputs, exact, train, depth, scratch / "fitted.npy", "label"),
        heldout_labels=exact_labels(
            inputs, exact, inputs.heldout, judged, scratch / "heldout.npy", "label held-out"
        ),
        sample=train.take(rows_S),
        sample_rows=rows_S,
    )


def exact_labels(
    inputs: BuildInputs, head: Shared[Head], contexts: Contexts, depth: int, file: Path, stage: str
) -> np.ndarray:
    """Return [N, K] ids of the head's top `depth`, mapped; InvalidRequest names a context."""
    dtype = np.uint16 if inputs.vocab_size <= 1 << 16 else np.int32
    with name_in_errors(file):
        labels = np.lib.format.open_memmap(file, "w+", dtype, (contexts.rows, depth))
    reserve(file, labels, 0, contexts.rows)
    calls = ((head, block, depth) for block in contexts.blocks(LABEL_ROWS))
    results = inputs.workers.map(label_block, calls)
    for part in contexts.spans(LABEL_ROWS):
        try:
            labels[part] = next(results)
        except InvalidRequest as error:
            if (row := re.fullmatch(r"hidden\[(\d+)\]", error.field)) is None:
                raise
            field = f"{contexts.field}[{contexts.number(part.start + int(row[1]))}]"
            raise InvalidRequest(field, error.got, error.allowed) from error
        inputs.progress(stage, part.stop, contexts.rows)
    return labels


def label_block(exact: Head, block: Float32, depth: int) -> Int32:
    return exact.topk(block, depth).ids


def check_heads(
    heads: Sequence[str] | None, targeted: bool, contexts: bool = True
) -> tuple[str, ...]:
    """Return `exact` and then `heads` (or the defaults), each once; InvalidRequest names one."""
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
