"""`logitsieve console`: an index in a browser."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

import typer

from logitsieve.cli.output import bars

Folders = Annotated[list[Path], typer.Argument(help="Indexes: folders <name>/<version>.")]
Port = Annotated[int, typer.Option(min=0, max=65535, help="Port on loopback; 0: a free one.")]
Browser = Annotated[bool, typer.Option(help="Whether a browser opens.")]


def command(index: Folders, port: Port = 0, browser: Browser = True) -> None:
    """Show indexes in a browser: answers of heads, missed words, operating points.

    Reads them, on this machine alone, until Ctrl-C.

    Example: logitsieve console models/lm/1
    """
    from logitsieve.decoding import LocalDecoder
    from logitsieve.index import open_index
    from logitsieve.server.console.standalone import show

    with bars("console") as progress:
        opened = [open_index(folder, verify="sizes", progress=progress) for folder in index]
        for each in opened:
            LocalDecoder(each).warm(progress)

    def announce(address: str) -> None:
        print(f"Console at {address} (Ctrl-C ends it)", flush=True)
        if browser:
            webbrowser.open(address)

    show(opened, port, announce)
