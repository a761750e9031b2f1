from __future__ import annotations

import re
from pathlib import Path

import pytest

from logitsieve.server.console import pages
from logitsieve.server.console.pages import PAGES, Page, render, static_files

MOST_BYTES = 200_000
ROOT = Path(pages.__file__).parent


def shown(page: Page) -> str:
    return render(page.name, signs_in=True, title=page.title)


def test_the_whole_console_is_small() -> None:
    sent = sum(len(file.content) for file in static_files().values())
    assert sent + sum(len(shown(page).encode()) for page in PAGES) < MOST_BYTES


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_its_files_and_nothing_of_another_host(page: Page) -> None:
    text = shown(page)
    files = re.findall(r'(?:src|href)="/static/([^"]+)"', text)
    assert set(files) <= static_files().keys()
    assert "//" not in re.sub(r"<!--.*?-->", "", text)
    assert "<style" not in text
    assert not re.search(r"\son\w+=|\sstyle=|<script>", text)
    assert text.count('aria-current="page"') == 1


@pytest.mark.parametrize("name", [name for name in static_files() if name.endswith(".js")])
def test_a_script_puts_no_html_together(name: str) -> None:
    text = static_files()[name].content.decode()
    if not name.startswith("uplot/"):
        assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|eval\(|https?://", text)


def test_what_is_told_is_escaped() -> None:
    text = render("failure", signs_in=False, title="Not found", message="<script>alert(1)</script>")
    assert "&lt;script&gt;" in text


def test_the_licence_of_the_plots_lies_beside_them() -> None:
    assert "MIT" in (ROOT / "static" / "uplot" / "LICENSE").read_text()
