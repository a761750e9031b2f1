"""`logitsieve report`: a page of plots about an index."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from logitsieve.cli.options import IndexFolder
from logitsieve.cli.output import bars


def command(
    index: IndexFolder,
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
    contexts: Annotated[
        str | None,
        typer.Option(help="Contexts to measure coverage on, in any form that build takes."),
    ] = None,
) -> None:
    """Write one self-contained HTML page of plots about an index.

    Example: logitsieve report models/lm/1 --contexts heldout.npy --out report.html
    """
    from logitsieve.index import open_index
    from logitsieve.index_builder.report import write_report

    with bars("report") as progress:
        opened = open_index(index, progress=progress)
    write_report(opened, out, contexts)
    print(out)
