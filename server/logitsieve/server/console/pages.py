"""Pages, styles and scripts of the console: read once, and sent as they are."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

HERE = Path(__file__).parent
TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

# No other host, no inline script or style, no frame: what a hostile word could ask for.
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
    """A page of the navigation: its path, template and script have one name."""

    path: str
    name: str
    title: str


PAGES = (
    Page("/", "overview", "Overview"),
    Page("/playground", "playground", "Playground"),
    Page("/why-not", "why-not", "Why not this word?"),
    Page("/points", "points", "Operating points"),
)


class StaticFile(NamedTuple):
    content: bytes
    media_type: str
    etag: str


@cache
def static_files() -> dict[str, StaticFile]:
    """Every file under static/, by its path there."""
    folder = HERE / "static"
    files = {}
    for path in sorted(folder.rglob("*")):
        if kind := TYPES.get(path.suffix):
            content = path.read_bytes()
            etag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
            files[path.relative_to(folder).as_posix()] = StaticFile(content, kind, etag)
    return files


@cache
def _templates() -> Environment:
    loader = FileSystemLoader(HERE / "templates")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True)


def render(name: str, *, signs_in: bool, title: str, **values: object) -> str:
    """A page by its template, `name`.html."""
    template = _templates().get_template(f"{name}.html")
    return template.render(name=name, title=title, signs_in=signs_in, pages=PAGES, **values)
