"""The function `tune`, which sweeps the knobs of an index's heads."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import chain, product, zip_longest
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from logitsieve.api.errors import InvalidKnob
from logitsieve.evaluation.operating_points import read_points, setting_of, undominated
from logitsieve.evaluation.precision import BLOCKS
from logitsieve.index_builder.config import TuneConfig
from logitsieve.index_builder.contexts import Source, open_contexts
from logitsieve.utils.environment import require
from logitsieve.utils.options import Progress, ProgressOption, to_progress

if TYPE_CHECKING:
    from logitsieve.heads import Head
    from logitsieve.index import Index
    from logitsieve.index_builder.calibrate import Bench, Entry, Times


def tune(
    index: Path | str,
    contexts: Source,
    out: Path | str,
    config: TuneConfig | None = None,
    progress: ProgressOption = "auto",
) -> Index:
    """Measure the heads of `index` at many settings, write the index `out`, and open it.

    Precisions are measured on `contexts`, which must not be those of the fit. Each head's grid is
    the product of its knobs' `tried` values. Only calibration.json changes: it gets the stored and
    the undominated points. One thread. `progress` is as in `build`. InvalidRequest names the
    argument, IndexUnreadable the file.
    """
    require("builder", "numba")
    from logitsieve.index import link_index, new_path, open_index
    from logitsieve.index_builder.calibrate import Bench

    config, progress = config or TuneConfig(), to_progress(progress, "tune")
    out = new_path(out)
    opened = open_index(index, progress=progress)
    heldout = open_contexts(contexts, opened.dim).spread(config.rows, BLOCKS)
    bench = Bench(opened.head("full"), heldout, opened.vocab_size, progress)
    points, settings = _sweep(opened, bench, config.minutes, progress)
    calibration = bench.calibration(_worth_keeping(points, stored=len(opened.heads)))
    calibration["settings"] = settings
    link_index(opened.path, out, calibration=calibration)
    return open_index(out)


def _sweep(
    index: Index, bench: Bench, minutes: float, progress: Progress
) -> tuple[list[list[Entry]], dict[str, int]]:
    started = monotonic()
    stored = [index.head(name) for name in index.heads]
    known = {setting_of(head.name, head.knobs): head for head in [*stored, *_points(index)]}
    further = [head for head in _further(stored) if setting_of(head.name, head.knobs) not in known]
    always = list(known.values())
    points: list[list[Entry]] = []
    proven: list[Times] = []
    measured = 0
    for head in chain(always, further):
        if measured >= len(always) and monotonic() - started >= 60 * minutes:
            break
        times = bench.times(head)
        beaten = any(all(us <= times[batch] for batch, us in each.items()) for each in proven)
        if measured < len(stored) or not beaten:
            points.append(bench.entries(head, times))
        if head.proves:
            proven.append(times)
        measured += 1
        progress("tune", measured, len(always) + len(further))
    left_out = len(always) + len(further) - measured
    return points, {"measured": measured, "left_out": left_out}


def _points(index: Index) -> list[Head]:
    from logitsieve.decoding import LocalDecoder

    if "points" not in (index.calibration or {}):
        return []
    return [index.head(point.head, **point.knobs) for point in LocalDecoder(index).points]


def _further(stored: list[Head]) -> Iterator[Head]:
    """Yield all other settings, shuffled, and heads in turn, for sweeps that are cut short."""
    grids = [list(_grid(head)) for head in stored]
    for grid in grids:
        random.Random(0).shuffle(grid)
    turns = chain.from_iterable(zip_longest(*grids))
    return (head for head in turns if head is not None)


def _grid(head: Head) -> Iterator[Head]:
    seen = [dict(head.knobs)]
    values = [
        dict.fromkeys([head.knobs[name], *knob.tried]) for name, knob in head.knob_table.items()
    ]
    for setting in product(*values):
        try:
            other = head.with_knobs(**dict(zip(head.knob_table, setting, strict=True)))
        except InvalidKnob:  # the index is too small for it
            continue
        if dict(other.knobs) not in seen:  # the head may have lowered a knob
            seen.append(dict(other.knobs))
            yield other


def _worth_keeping(settings: list[list[Entry]], stored: int) -> list[Entry]:
    points = read_points(chain.from_iterable(settings))
    best = undominated(points)
    return [
        entry
        for number, (entries, point) in enumerate(zip(settings, points, strict=True))
        if number < stored or point in best
        for entry in entries
    ]
