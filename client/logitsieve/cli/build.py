from __future__ import annotations

import sys
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from logitsieve.api.errors import MissingExtra, naming
from logitsieve.cli.options import (
    CORES,
    ENGINE,
    RAY,
    AsJson,
    EngineName,
    executor_at,
    flag,
    numbers,
    read_words,
)
from logitsieve.cli.output import bars, print_files, print_json, shown
from logitsieve.cli.points import auto_of, print_points, without_contexts
from logitsieve.evaluation.operating_points import BEYOND
from logitsieve.index_builder import BuildConfig, build
from logitsieve.index_builder.arrays import is_gguf
from logitsieve.utils.environment import require

if TYPE_CHECKING:
    from logitsieve.api.results import Float32
    from logitsieve.decoding.auto import Auto
    from logitsieve.index import Index
    from logitsieve.utils.options import Progress

ALL_CORES = BuildConfig(threads=CORES)
PRIMER = "No --contexts are given: the model reads the primer first, by its engine."
LEFT_SHARE = 0.5  # warn if the screen leaves more rows to its fallback


@dataclass(frozen=True, kw_only=True)
class BuildOptions:
    weight: str = flag(
        MISSING, "The matrix W [V, D]: W.npy, W.npz:NAME, W.safetensors:NAME or MODEL.gguf."
    )
    contexts: str | None = flag(
        None,
        "Context vectors [N, D]: a file like --weight, or a folder of shards. Without them, a GGUF"
        " model first reads the primer of capture -m if llama.cpp is installed, and only full and"
        " sketch can be built.",
    )
    out: Path = flag(MISSING, "The index to write: a new folder <name>/<version>.")
    bias: str | None = flag(None, "The bias [V]; zeros if absent.")
    heldout: tuple[str, ...] = flag(
        (),
        "Contexts to judge on, by default the last tenth of --contexts. Repeatable: the worst of"
        " several texts decides.",
    )
    vocab_file: Path | None = flag(
        None, "Text file of the words by id, one per line; the index keeps a copy."
    )
    heads: str | None = flag(
        None,
        "Heads to build, separated by commas: full, screen (learned screens, L2S), sketch, svd"
        " (SVD previews), lsh (LSH tables), frequency. full,screen,sketch if absent"
        " (screen only if it pays), or full,sketch without --contexts.",
    )
    target_precision: tuple[str, ...] = flag(
        (),
        "Search for the fastest screen with at least this P@1, P@5 (or p10).",
        metavar="p1=P,p5=P",
    )
    engine: EngineName = flag("auto", ENGINE)
    ray: str | None = flag(None, RAY, metavar="ADDRESS")
    best_effort: bool = flag(
        False, "Write the closest screen if none reaches the target.", "--best-effort"
    )


def command(
    options: BuildOptions, config: BuildConfig = ALL_CORES, as_json: AsJson = False
) -> None:
    """Make an index of a frozen softmax for the contexts that it meets.

    Example: logitsieve build --weight lm.npz:W --bias lm.npz:b --contexts H.npy --out models/lm/1
    """
    target = numbers("target_precision", options.target_precision, "p1=0.998 or p1=0.998,p5=0.99")
    heads = None
    if options.heads is not None:
        heads = [name.strip() for name in options.heads.split(",")]
    with executor_at(options.ray) as executor, bars("build") as progress:
        contexts: str | Float32 | None = options.contexts
        if contexts is None:
            from logitsieve.index_builder.pipeline import check_heads

            heads = list(check_heads(heads, bool(target), False, config.fallback))
            contexts = _of_primer(options, config.threads, progress)
        index = build(
            options.weight,
            options.bias,
            contexts,
            options.out,
            vocabulary=read_words(options.vocab_file) if options.vocab_file else None,
            heads=heads,
            target_precision=target or None,
            config=config,
            progress=progress,
            heldout=options.heldout or None,
            best_effort=options.best_effort,
            executor=executor,
        )
    if as_json:
        facts = {"index": str(index.path), "digest": index.digest, "dtype": index.manifest.dtype}
        measured = without_contexts(index.calibration)
        print_json({**facts, "bytes": _bytes(index), "calibration": measured})
    else:
        show(index)


def _of_primer(options: BuildOptions, threads: int, progress: Progress) -> Float32 | None:
    from logitsieve.index import new_path

    if not is_gguf(options.weight):
        return None
    try:
        require("llamacpp", "gguf", "xllamacpp")
    except MissingExtra as error:
        print(f"No --contexts are given, and the primer is not read: {error}", file=sys.stderr)
        return None
    from logitsieve.index_builder.capture.llamacpp import gguf_primer

    new_path(options.out)  # refuses a bad path before the model runs
    print(PRIMER, file=sys.stderr)
    with naming("weight"):
        return gguf_primer(options.weight, threads, progress, options.engine)


def _bytes(index: Index) -> dict[str, int]:
    return {entry.file: entry.size for entry in index.manifest.files()}


def show(index: Index) -> None:
    print_points(index)
    print_files("On disk", _bytes(index), index.vocab_size * index.dim)
    screen = index.manifest.heads.get("screen")
    escalated = 0.0 if screen is None else screen.config.get("escalated", 0.0)
    if escalated > LEFT_SHARE:
        print(
            f"Warning: the target leaves {escalated:.0%} of the rows to the fallback of the screen."
        )
    auto = auto_of(index)
    if said := slow_proof(auto):
        print(said)
    heads = dict.fromkeys(auto.choose(batch, BEYOND, None)[0] for batch in auto.batches)
    made = f"W as {index.manifest.dtype}, requests without a head: {' or '.join(heads)} (AUTO)"
    print(f"{index.path}: {made}, digest {index.digest}")


def slow_proof(auto: Auto) -> str:
    """Return a warning if a proof by `sketch` took at least as long as `full` at one row a call."""
    full, sketch = (
        min((each.us_at(1) for each in auto.points if each.proven and each.head == head), default=0)
        for head in ("full", "sketch")
    )
    times = f"{shown(sketch)} us at one row a call, full {shown(full)} us"
    return f"Warning: a proof by sketch takes {times}." * (0 < full <= sketch)
