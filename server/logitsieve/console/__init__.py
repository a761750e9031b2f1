"""Pages in a browser that show a server's models at work, found by entry point."""

from __future__ import annotations

from typing import TYPE_CHECKING

from logitsieve.utils.environment import require

if TYPE_CHECKING:
    from logitsieve.server.http.application import Console, ServerView


def open_console(view: ServerView) -> Console:
    """Return the pages over a server; MissingExtra without Jinja."""
    require("console", "jinja2")
    from logitsieve.console.app import Pages

    return Pages(view)
