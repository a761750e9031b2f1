"""Vocabulary files: words by id, one a line."""

from __future__ import annotations

from pathlib import Path

from logitsieve.api.errors import InvalidRequest


def read_words(path: Path) -> list[str]:
    """The lines of a UTF-8 file; InvalidRequest names `vocabulary`."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest("vocabulary", f"{path} ({error})", "a UTF-8 text file") from error
    return text.removesuffix("\n").split("\n")
