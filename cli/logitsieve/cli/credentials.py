"""Options of the commands that call a server: whom to trust, as whom to come."""

from __future__ import annotations

from pathlib import Path

from logitsieve.client import Tls
from logitsieve.types.errors import InvalidRequest


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
