"""Pages of the console, and the headers of all its replies."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

HERE = Path(__file__).parent
# No other host, inline script, style or frame that a hostile word could ask for.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class Page(NamedTuple):
    """A page of the navigation; its template and script have its name."""

    path: str
    name: str
    title: str


PAGES = (
    Page("/", "overview", "Overview"),
    Page("/playground", "playground", "Playground"),
    Page("/why-not", "why-not", "Why not this word?"),
    Page("/points", "points", "Operating points"),
)


@cache
def _templates() -> Environment:
    loader = FileSystemLoader(HERE / "templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)


def render(name: str, *, signs_in: bool, title: str, **values: object) -> str:
    """Render the template `name`.html."""
    template = _templates().get_template(f"{name}.html")
    return template.render(name=name, title=title, signs_in=signs_in, pages=PAGES, **values)
