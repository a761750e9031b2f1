"""`logitsieve report`: a page of plots about an index."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from logitsieve.cli.options import IndexFolder
from logitsieve.cli.output import bars

if TYPE_CHECKING:
    from logitsieve.api.results import Float32

SAMPLED = 4000  # contexts that are looked at, spread over all


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
    from logitsieve.server.console.report import write_report

    with bars("report") as progress:
        opened = open_index(index, progress=progress)
    hidden = None if contexts is None else _sample(contexts, opened.dim)
    write_report(opened, out, hidden)
    print(out)


def _sample(contexts: str, dim: int) -> Float32:
    """Contexts [B, `dim`], at most SAMPLED, spread over all."""
    from logitsieve.index_builder.data.contexts import open_contexts

    with TemporaryDirectory() as scratch:
        return open_contexts(contexts, dim, Path(scratch)).sample(SAMPLED)
