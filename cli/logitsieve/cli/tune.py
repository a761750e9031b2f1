"""`logitsieve tune`: operating points from a sweep of knobs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from logitsieve.cli.console import bars, print_json
from logitsieve.cli.options import AsJson, IndexFolder, with_options
from logitsieve.index_builder import TuneConfig, tune


@with_options(TuneConfig)
def command(
    index: IndexFolder,
    contexts: Annotated[
        str,
        typer.Option(help="Contexts to judge on, unseen by the build, in any form that it takes."),
    ],
    out: Annotated[Path, typer.Option(help="The index to write: a new folder <name>/<version>.")],
    config: TuneConfig,
    as_json: AsJson = False,
) -> None:
    """Sweep the knobs of every head into operating points, in a new version that shares all files.

    Example: logitsieve tune models/lm/1 --contexts heldout.npy --out models/lm/2
    """
    from logitsieve.cli.points import print_changes, print_points, without_contexts
    from logitsieve.index import open_index

    with bars("tune") as progress:
        tuned = tune(index, contexts, out, config, progress)
    if as_json:
        facts = {"index": str(tuned.path), "digest": tuned.digest}
        print_json({**facts, "calibration": without_contexts(tuned.calibration)})
        return
    print_points(tuned, bounds=True)
    with open_index(index, verify="sizes") as before:
        print_changes(before, tuned)
    settings = (tuned.calibration or {})["settings"]
    print(f"{tuned.path}: {settings['measured']} settings measured, of one digest with {index}")
    if settings["left_out"]:
        print(f"Warning: {settings['left_out']} settings left out, --minutes were over")
