"""`logitsieve tune`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from logitsieve.cli.console import bars, print_json
from logitsieve.cli.options import with_options
from logitsieve.cli.points import print_points, without_contexts
from logitsieve.index_builder.tune import TuneConfig, tune


@with_options(TuneConfig)
def command(
    index: Annotated[Path, typer.Argument(help="The index: a folder <name>/<version>.")],
    contexts: Annotated[
        str,
        typer.Option(help="Contexts to judge on, not those of the build; any form it takes."),
    ],
    out: Annotated[Path, typer.Option(help="The index to write: <name>/<version>.")],
    config: TuneConfig,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Sweep the knobs of every head into operating points, in a new version that shares all files.

    Example: logitsieve tune models/lm/1 --contexts heldout.npy --out models/lm/2
    """
    with bars() as progress:
        tuned = tune(index, contexts, out, config, progress)
    if as_json:
        facts = {"index": str(tuned.path), "digest": tuned.digest}
        print_json({**facts, "calibration": without_contexts(tuned.calibration)})
        return
    print_points(tuned)
    settings = (tuned.calibration or {})["settings"]
    print(f"{tuned.path}: {settings['measured']} settings measured, of one digest with {index}")
    if settings["left_out"]:
        print(f"Warning: {settings['left_out']} settings left out, --minutes were over")
