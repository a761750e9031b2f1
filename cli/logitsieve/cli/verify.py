"""`logitsieve verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from logitsieve.cli.console import bars, print_json, print_table
from logitsieve.index import verify_index
from logitsieve.index.contents import read_contents


def command(
    index: Annotated[Path, typer.Argument(help="The index: a folder <name>/<version>.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check every byte and every number of an index.

    Exit code 1 names the damaged file and the reason. Nothing is remembered: each call reads all.

    Example: logitsieve verify models/lm/1
    """
    with bars() as progress:
        files = verify_index(index, progress)
    dtype = read_contents(index).manifest.dtype
    if as_json:
        print_json({"index": str(index), "dtype": dtype, "checked": files, "ok": True})
        return
    rows = [(file, (index / file).stat().st_size) for file in files]
    print_table(f"{index}: no damage, W is {dtype}", ["checked", "bytes"], rows)
