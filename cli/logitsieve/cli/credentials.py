"""Options of the commands that call a server: whom to trust, as whom to come."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from logitsieve.api.errors import InvalidRequest
from logitsieve.client import Tls

# The options of every command that connects.
ByTls = Annotated[bool, typer.Option("--tls", help="Connect by TLS.")]
Authorities = Annotated[
    Path | None, typer.Option(help="Authorities of the server's certificate, a PEM file.")
]
Certificate = Annotated[Path | None, typer.Option(help="A certificate of your own.")]
Key = Annotated[Path | None, typer.Option(help="Its key.")]
TokenFile = Annotated[Path | None, typer.Option(help="File that holds nothing but a bearer token.")]


def to_tls(wanted: bool, ca: Path | None, cert: Path | None, key: Path | None) -> Tls | None:
    """None where nothing asks for TLS."""
    return Tls(ca=ca, cert=cert, key=key) if wanted or ca or cert or key else None


def read_token(path: Path | None) -> str:
    """What the file holds, "" without one; InvalidRequest names `token_file`."""
    if path is None:
        return ""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest("token_file", f"{path} ({error})", "a file with a token") from error
