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
) -> None:
    """Write one self-contained HTML page of plots about an index.

    Example: logitsieve report models/lm/1 --out report.html
    """
    from logitsieve.index import open_index
    from logitsieve.server.console.report import write_report

    with bars("report") as progress:
        opened = open_index(index, progress=progress)
    write_report(opened, out)
    print(out)
