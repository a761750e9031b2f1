import re
from pathlib import Path

import pytest

from logitsieve.console.app import HERE, PAGES, Page, render

MOST_BYTES = 200_000
STATIC = HERE / "static"
SCRIPTS = sorted(STATIC.glob("*.js"))


def shown(page: Page) -> str:
    return render(page.name, signs_in=True, title=page.title)


def test_the_whole_console_is_small() -> None:
    sent = sum(file.stat().st_size for file in STATIC.rglob("*") if file.is_file())
    assert sent + sum(len(shown(page).encode()) for page in PAGES) < MOST_BYTES
    assert "MIT" in (STATIC / "uplot" / "LICENSE").read_text()
    text = render("failure", signs_in=False, title="Not found", message="<script>alert(1)</script>")
    assert "&lt;script&gt;" in text


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_its_files_and_nothing_of_another_host(page: Page) -> None:
    text = shown(page)
    files = re.findall(r'(?:src|href)="/static/([^"]+)"', text)
    assert files
    assert all((STATIC / file).is_file() for file in files)
    assert "//" not in re.sub(r"<!--.*?-->", "", text)
    assert "<style" not in text
    assert not re.search(r"\son\w+=|\sstyle=|<script>", text)
    assert text.count('aria-current="page"') == 1


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_a_script_puts_no_html_together(script: Path) -> None:
    text = script.read_text("utf-8")
    assert not re.search(r"innerHTML|insertAdjacentHTML|document\.write|eval\(|https?://", text)
