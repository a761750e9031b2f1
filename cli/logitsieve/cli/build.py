"""`logitsieve build`: an index from a softmax and contexts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from logitsieve.cli.console import bars, print_json, print_table, size
from logitsieve.cli.options import AsJson, numbers, read_words, with_options
from logitsieve.index_builder import BuildConfig, build

if TYPE_CHECKING:
    from logitsieve.index import Index

MUCH = 0.5  # share of rows left to the fallback above which a screen saves little


@with_options(BuildConfig)
def command(
    weight: Annotated[
        str, typer.Option(help="The matrix W [V, D]: W.npy, W.npz:NAME or W.safetensors:NAME.")
    ],
    contexts: Annotated[
        str,
        typer.Option(help="Context vectors [N, D]: a file like --weight, or a folder of shards."),
    ],
    out: Annotated[Path, typer.Option(help="The index to write: a new folder <name>/<version>.")],
    config: BuildConfig,
    bias: Annotated[str | None, typer.Option(help="The bias [V]; zeros if absent.")] = None,
    heldout: Annotated[
        str | None,
        typer.Option(help="Contexts to judge on; the last tenth of --contexts if absent."),
    ] = None,
    vocabulary: Annotated[
        Path | None,
        typer.Option(help="Text file of the words by id, one per line, kept in the index."),
    ] = None,
    heads: Annotated[str, typer.Option(help="Heads to build, separated by commas.")] = (
        "exact,screen,certified"
    ),
    target_precision: Annotated[
        list[str] | None,
        typer.Option(
            metavar="p1=P,p5=P",
            help="Search for the fastest screen whose P@1, P@5 (or p10) reach these.",
        ),
    ] = None,
    best_effort: Annotated[
        bool,
        typer.Option("--best-effort", help="Write the nearest screen if none reaches the target."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Turn a frozen softmax and the contexts it meets into an index.

    Example: logitsieve build --weight lm.npz:W --bias lm.npz:b --contexts H.npy --out models/lm/1
    """
    target = numbers("target_precision", target_precision) if target_precision else None
    words = None if vocabulary is None else read_words(vocabulary)
    with bars("build") as progress:
        index = build(
            weight,
            bias,
            contexts,
            out,
            vocabulary=words,
            heads=[name.strip() for name in heads.split(",")],
            target_precision=target,
            config=config,
            progress=progress,
            heldout=heldout,
            best_effort=best_effort,
        )
    if as_json:
        from logitsieve.cli.points import without_contexts

        facts = {"index": str(index.path), "digest": index.digest, "dtype": index.manifest.dtype}
        measured = without_contexts(index.calibration)
        print_json({**facts, "bytes": _bytes(index), "calibration": measured})
    else:
        show(index)


def _bytes(index: Index) -> dict[str, int]:
    return {entry.file: entry.size for entry in index.manifest.files()}


def show(index: Index) -> None:
    """Print the operating points, the sizes of the files, and the path of the index."""
    from logitsieve.cli.points import print_points

    print_points(index)
    matrix = index.vocab_size * index.dim * 4
    rows = [
        (name, size(count), f"{100 * count / matrix:.2f} %")
        for name, count in _bytes(index).items()
    ]
    print_table("On disk", ["file", "size", "of W"], rows)
    screen = index.manifest.heads.get("screen")
    escalated = 0.0 if screen is None else screen.config.get("escalated", 0.0)
    if escalated > MUCH:
        print(
            f"Warning: the target leaves {escalated:.0%} of the rows to the fallback of the screen."
        )
    made = f"W as {index.manifest.dtype}, default head {index.default_head}"
    print(f"{index.path}: {made}, digest {index.digest}")
