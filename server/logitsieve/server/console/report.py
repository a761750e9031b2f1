"""The offline report: pages of the console in one file, with the answers that they ask for."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup

from logitsieve.evaluation.operating_points import KS
from logitsieve.index import Index
from logitsieve.server.console.overview import overview_facts
from logitsieve.server.console.pages import PAGES, render, static_files
from logitsieve.server.console.points import chosen_facts, points_facts
from logitsieve.server.console.standalone import routes_of
from logitsieve.server.console.words import Facts
from logitsieve.utils.environment import name_in_errors

SHOWN = ("overview", "points")
SHARED = "console.js"
POLICY = (
    "default-src 'none'; script-src data:; style-src data:; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)


def write_report(index: Index, out: Path | str) -> None:
    """Write the page `out`; equal indexes give equal pages.

    IndexUnreadable if the calibration is not of its form.
    """
    pages = [page for page in PAGES if page.name in SHOWN]
    common: dict[str, Any] = {"signs_in": False, "offline": True, "address": _address}
    page = render(
        "report",
        title=f"{index.name} {index.version}",
        pages=pages,
        policy=POLICY,
        digest=index.digest,
        answers=answers_of(index),
        parts={
            each.name: Markup(render(each.name, title="", layout="part.html", **common))
            for each in pages
        },
        **common,
    )
    out = Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with name_in_errors(out):
        out.write_text(page, encoding="utf-8")


def answers_of(index: Index) -> dict[str, Facts]:
    """What the endpoints answer about `index`, by path and query as the pages ask."""
    routes, name = routes_of([index]), f"{index.name}@{index.version}"
    decoder = routes.served(name).whole

    def asked(endpoint: str, **values: object) -> str:
        return f"{endpoint}?{urlencode({'model': name, **values})}"

    answers = {
        "overview": overview_facts(routes, None, ready=True),
        asked("points"): points_facts(decoder),
    }
    for k in {min(k, index.vocab_size) for k in KS}:
        answers[asked("chosen", k=k)] = chosen_facts(decoder, None, k)
    return answers


def _address(name: str) -> str:
    """A file of static/ as an address that holds its content."""
    file = static_files()[name]
    content = file.content
    if name.endswith(".js") and name != SHARED:
        # A module that is an address itself has no place to look beside.
        content = content.replace(f'"./{SHARED}"'.encode(), f'"{_address(SHARED)}"'.encode())
    kind = file.media_type.partition(";")[0]
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
