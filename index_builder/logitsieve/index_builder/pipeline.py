from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import cache
from pathlib import Path

from threadpoolctl import threadpool_limits

from logitsieve.api.errors import InvalidRequest, TargetNotReached
from logitsieve.api.results import Bool
from logitsieve.evaluation import read_target
from logitsieve.evaluation.precision import BLOCKS
from logitsieve.heads.sketch import GRADES
from logitsieve.index import HeadEntry, Index, open_index, write_index
from logitsieve.index_builder.calibrate import JUDGED_LOGITS, calibrate
from logitsieve.index_builder.config import AUTO
from logitsieve.index_builder.fit.frequency import fit_frequency
from logitsieve.index_builder.fit.lsh import fit_lsh
from logitsieve.index_builder.fit.screen import (
    checked_target,
    costs_of,
    fit_screen,
    label_depth,
    refuse_unprovable,
)
from logitsieve.index_builder.fit.sketch import fit_sketch, steep
from logitsieve.index_builder.fit.svd import fit_svd
from logitsieve.index_builder.fitting import (
    FULL,
    SKETCH,
    SVD,
    BuildInputs,
    FitInputs,
    FitResult,
    at_grades,
    each_by,
    exact_labels,
    part_name,
    sample_rows,
    shared_heads,
)
from logitsieve.index_builder.screen.cascade import shares_right
from logitsieve.index_builder.screen.forecast import (
    SAMPLED,
    at_equal_precision,
    faster_fallback,
    few,
    forecast,
)

FITS: dict[str, Callable[[FitInputs], FitResult]] = {
    "screen": fit_screen,
    "svd": fit_svd,
    "lsh": fit_lsh,
    "frequency": fit_frequency,
}

HEADS_BUILT = (FULL, "screen", SKETCH)
WITHOUT_CONTEXTS = (FULL, SKETCH)
SKETCH_NOTE = (
    "the head sketch takes no less time than all logits, so it is left out; name it in `heads` to"
    " have it"
)
EVALUATED = 10

__all__ = ["FITS", "BuildInputs", "check_heads", "checked_target", "refuse_unprovable", "run"]


def run(
    inputs: BuildInputs,
    names: Sequence[str],
    vocabulary: Sequence[str] | None,
    out: Path,
    scratch: Path,
) -> Index:
    config, softmax, progress = inputs.config, inputs.softmax, inputs.progress
    with threadpool_limits(config.threads, "blas"):  # so that sums do not depend on the machine
        fitted, fallback, notes = _fit(inputs, names, scratch)
        shared = shared_heads(softmax, fitted, fallback)
        heads = {name: each.value for name, each in shared.items()}
        graded = {SKETCH: at_grades(softmax, fitted)}
        measured = [one for name, own in shared.items() for one in graded.get(name, [own])]
        each = each_by(inputs.workers, measured)
        calibration = None
        if inputs.heldout.rows:
            judged = inputs.heldout
            if not inputs.target:
                judged = judged.spread(max(BLOCKS, JUDGED_LOGITS // softmax.vocab_size), BLOCKS)
            points = [one.value for one in measured]
            target = read_target({"target_precision": inputs.target})
            steps = target[max(target)] if target else None
            calibration = calibrate(points, judged, softmax.vocab_size, progress, each, steps)
    entries = {FULL: HeadEntry()}
    for name, result in fitted.items():
        entries[name] = HeadEntry(part_name(name), heads[name].knobs, result.summary)
    progress("write", 0, 1)
    write_index(
        out,
        softmax=softmax,
        parts={part_name(name): result.arrays for name, result in fitted.items()},
        heads=entries,
        default_head=next((name for name in names if name in fitted), FULL),
        vocabulary=vocabulary,
        config={
            **asdict(config),
            "target_precision": dict(inputs.target or {}),
            "fallback": fallback,
            **notes,
        },
        seeds={"seed": config.seed},
        calibration=calibration,
        finite=True,
    )
    progress("write", 1, 1)
    return open_index(out, threads=config.threads, verify="sizes")


def _fit(
    inputs: BuildInputs, names: Sequence[str], scratch: Path
) -> tuple[dict[str, FitResult], str, dict[str, str]]:
    """Return the fitted heads, the fallback, and notes on heads that are left out.

    A screen has to beat the sketch, unless the softmax is steep. Then a sketch reads little, but
    short lists read even less, and take little time to fit.
    """
    fitted: dict[str, FitResult] = {}
    asked, notes = inputs.config.fallback, dict[str, str]()
    if SKETCH in names:
        if sketch := fit_sketch(inputs):
            fitted = {SKETCH: sketch}
        else:
            notes["sketch_note"] = SKETCH_NOTE
    fallback = SKETCH if SKETCH in fitted and asked != FULL else FULL
    learned = [name for name in FITS if name in names]
    compared = "screen" in learned and fallback == SKETCH and asked != SVD
    compared = compared and not steep(inputs, fitted[SKETCH].arrays)

    @cache
    def prepared() -> FitInputs:
        return prepare(inputs, label_depth(inputs, compared), scratch)

    rest = None
    if SVD in learned and (asked == SVD or (asked == AUTO and inputs.target)):
        fitted[SVD] = fit_svd(replace(prepared(), fitted=dict(fitted), fallback=fallback))
        if (found := _found_by_svd(prepared(), fitted, fallback, scratch)) is not None:
            fallback, rest, compared = SVD, found, False
    for name in learned:
        if name == "screen" and compared:
            screen, note = _paying_screen(inputs, fitted[SKETCH], prepared, scratch)
            fitted |= {} if screen is None else {name: screen}
            notes |= {"screen_note": note} if note else {}
        elif name not in fitted:
            basis = replace(prepared(), fitted=dict(fitted), fallback=fallback, rest=rest)
            fitted[name] = FITS[name](basis)
    return fitted, fallback, notes


def _found_by_svd(
    inputs: FitInputs, fitted: Mapping[str, FitResult], other: str, scratch: Path
) -> Bool | None:
    """Return whether svd finds each held-out label [H, K], or None if `other` is a better fallback.

    Unless svd was asked for, it must meet the target precision and be faster than `other`.
    """
    heads = shared_heads(inputs.softmax, fitted)
    judged = at_equal_precision(inputs, heads[SVD], scratch)
    assert judged.rest is not None
    if inputs.config.fallback == SVD:
        return judged.rest
    assert inputs.target
    shown = shares_right(judged.rest, inputs.target)
    meets = all(inputs.bound(shown[name]) >= least for name, least in inputs.target.items())
    us = {name: inputs.trial.us(heads[name].value) for name in (SVD, other)}
    return judged.rest if meets and us[SVD] < us[other] else None


def _paying_screen(
    inputs: BuildInputs, sketch: FitResult, prepared: Callable[[], FitInputs], scratch: Path
) -> tuple[FitResult | None, str]:
    """Return a screen, or None if the sketch is cheaper at equal precision, and a note."""
    name, named = SKETCH, inputs.named
    fitted = {name: replace(sketch, knobs={"max_error": GRADES[-1]})}
    if named or inputs.train.rows <= SAMPLED:
        basis = prepared()
    else:
        (folder := scratch / "few").mkdir()
        part = replace(inputs, train=few(inputs.train))
        basis = prepare(part, label_depth(inputs, True), folder)
    basis = replace(basis, fitted=fitted, fallback=name)
    judged = at_equal_precision(basis, shared_heads(inputs.softmax, fitted)[name], scratch)
    prospects = forecast(judged, costs := costs_of(judged))
    note = prospects.said(len(inputs.texts)) if prospects.needed > inputs.train.rows else ""
    if note and not named:
        return None, note
    target = inputs.target if named else judged.target
    full = replace(prepared(), fitted=fitted, fallback=name, rest=judged.rest, target=target)
    lost = prospects._replace(rows=inputs.train.rows)
    try:
        screen = fit_screen(replace(full, best_effort=named and inputs.best_effort), costs)
    except TargetNotReached:
        if named:
            raise
        return None, lost._replace(left=1.0).said(len(inputs.texts))
    if target is None:
        return screen, note
    left = faster_fallback(full, costs, screen)
    if left is None:
        return screen, ""
    return screen if named else None, lost._replace(left=left).said(len(inputs.texts))


def prepare(inputs: BuildInputs, depth: int, scratch: Path) -> FitInputs:
    vocab_size, config, train = inputs.vocab_size, inputs.config, inputs.train
    depth = min(depth, vocab_size)
    judged = min(max(depth, EVALUATED), vocab_size)
    full = shared_heads(inputs.softmax, {})[FULL]
    rows_S = sample_rows(train.rows, (config.sample_mib << 20) // (4 * train.dim), config.seed)
    return FitInputs(
        **{each.name: getattr(inputs, each.name) for each in fields(BuildInputs)},
        labels=exact_labels(inputs, full, train, depth, scratch / "fitted.npy", "label"),
        heldout_labels=exact_labels(
            inputs, full, inputs.heldout, judged, scratch / "heldout.npy", "label held-out"
        ),
        sample=train.take(rows_S),
        sample_rows=rows_S,
    )


def check_heads(
    heads: Sequence[str] | None, targeted: bool, contexts: bool = True, fallback: str = AUTO
) -> tuple[str, ...]:
    if heads is None:
        heads = HEADS_BUILT if contexts else WITHOUT_CONTEXTS
    for name in heads:
        if name not in (allowed := (FULL, SKETCH, *FITS)):
            raise InvalidRequest("heads", repr(name), ", ".join(allowed))
        if not contexts and name not in WITHOUT_CONTEXTS:
            raise InvalidRequest("contexts", "nothing", f"contexts to fit the head {name} to")
    if targeted and not contexts:
        raise InvalidRequest("contexts", "nothing", "contexts to reach target_precision on")
    if targeted and "screen" not in heads:
        raise InvalidRequest("target_precision", "no head to search", "heads with 'screen'")
    if fallback not in (allowed := (AUTO, FULL, *heads)):
        raise InvalidRequest("fallback", repr(fallback), f"{', '.join(allowed)}, which are built")
    return tuple(dict.fromkeys([FULL, *heads]))
