from __future__ import annotations

from typing import TYPE_CHECKING

from logitsieve.utils.environment import require

if TYPE_CHECKING:
    from logitsieve.server.http.application import Console, ServerView


def open_console(view: ServerView) -> Console:
    """Open the console of a server, as an entry point. MissingExtra without Jinja."""
    require("console", "jinja2")
    from logitsieve.console.app import Pages

    return Pages(view)
