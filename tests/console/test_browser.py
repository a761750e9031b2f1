"""The console in a browser: Chromium, driven by Playwright; skipped where either is absent."""

import gzip
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from logitsieve.server.http.listener import Listener
from logitsieve.server.models.routes import Routes
from logitsieve.server.security import ApiKeys
from tests.console.conftest import HOSTILE, shown
from tests.server.materials import write_api_keys
from tests.server.running import Loop, Running
from tests.sweeps import swept
from tests.synthetic import make_hidden

playwright = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install '.[dev]'"
)
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no browser: apt-get install chromium")

# Deque's axe-core 4.14.1 (MPL 2.0): rules of accessibility.
AXE = gzip.decompress((Path(__file__).parent / "vendored" / "axe.min.js.gz").read_bytes()).decode()
WAIT_MS = 20_000
KEY = "console-token-0123"
PAINTED = """new Promise((resolve) => {
    const note = (list) => list.getEntriesByName("first-contentful-paint").length && resolve();
    new PerformanceObserver(note).observe({type: "paint", buffered: true});
})"""
SIZES = [(400, "dark"), (1600, "light")]


@dataclass
class Tab:
    """A page of the browser, and what went wrong on it."""

    page: Any
    address: str
    errors: list[str] = field(default_factory=list)

    def open(self, path: str, ready: str) -> None:
        self.page.goto(self.address + path)
        self.page.wait_for_selector(ready, state="attached")

    def require_quiet(self) -> None:
        """No error, no request to another host, no overflow."""
        assert self.errors == []
        wide = "document.documentElement.scrollWidth - innerWidth"
        assert self.page.evaluate(wide) <= 0

    def require_sound(self) -> None:
        """Quiet, and without anything that axe-core finds."""
        self.require_quiet()
        # By the debugger, which the policy of the pages does not bind.
        found = self.page.evaluate(f"(() => {{ {AXE} }})(); axe.run()")["violations"]
        assert [(one["id"], [node["html"] for node in one["nodes"]]) for one in found] == []


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        options = {"executable_path": CHROMIUM, "args": ["--no-sandbox", "--disable-gpu"]}
        browser = started.chromium.launch(**options)
        yield browser
        browser.close()


@contextmanager
def listening(loop: Loop, routes: Routes, api_keys: ApiKeys | None = None) -> Iterator[str]:
    with shown(lambda: routes, api_keys) as app:
        listener = Listener(app, patience_s=60)
        port = loop.run(listener.start("127.0.0.1", 0))
        try:
            yield f"http://127.0.0.1:{port}"
        finally:
            loop.run(listener.stop())


@pytest.fixture(scope="module")
def address(loop: Loop, routes: Routes) -> Iterator[str]:
    with listening(loop, routes) as address:
        yield address


Opened = Callable[..., Tab]


@pytest.fixture
def opened(browser: Any, address: str) -> Iterator[Opened]:
    """Open a tab of a width and a colour scheme."""
    contexts = []

    def open_tab(width: int = 1600, scheme: str = "light", at: str = address) -> Tab:
        viewport = {"width": width, "height": 900}
        context = browser.new_context(viewport=viewport, color_scheme=scheme)
        contexts.append(context)
        context.set_default_timeout(WAIT_MS)
        tab = Tab(context.new_page(), at)
        tab.page.on("pageerror", lambda error: tab.errors.append(str(error)))
        tab.page.on("dialog", lambda dialog: tab.errors.append(f"dialog: {dialog.message}"))
        tab.page.on("console", lambda line: _note(tab, line))
        tab.page.on("request", lambda request: _require_own(tab, request.url))
        return tab

    yield open_tab
    for context in contexts:
        context.close()


def _note(tab: Tab, line: Any) -> None:
    if line.type in ("error", "warning"):
        tab.errors.append(line.text)


def _require_own(tab: Tab, url: str) -> None:
    if not url.startswith(tab.address):
        tab.errors.append(f"asked {url}")


# What a page shows of demo@1 when it is done.
READY = {
    "/": "#models .card dl",
    "/playground?model=demo@1": "#answers table",
    "/why-not?model=demo@1": "#model:enabled",
    "/points?model=demo@1": "#table table",
}


PAGES = [(path, *size) for path in READY for size in SIZES]


@pytest.mark.parametrize(("path", "width", "scheme"), swept(PAGES, [*PAGES[::2], PAGES[3]]))
def test_every_page_at_both_sizes(opened: Opened, path: str, width: int, scheme: str) -> None:
    tab = opened(width, scheme)
    tab.open(path, READY[path])
    if path.startswith("/playground"):
        tab.page.click("#drawing button")
        tab.page.wait_for_selector("#drawn table")
    tab.require_sound()


@pytest.mark.parametrize(
    ("path", "text"), [("/playground", "keeps none"), ("/points", "was not calibrated")]
)
def test_an_index_that_has_little_says_what_to_do(opened: Opened, path: str, text: str) -> None:
    tab = opened(400, "light")
    tab.open(f"{path}?model=bare@1", f"text={text}")
    tab.require_quiet()


def test_hostile_words_are_text(opened: Opened) -> None:
    tab = opened()
    row = ", ".join(["0.1"] * 24)
    question = {"model": "demo@1", "row": [0.1] * 24, "k": len(HOSTILE)}
    tab.page.route(
        "**/api/top",
        lambda route: route.continue_(
            post_data=str({**question, "allowed": [*range(len(HOSTILE))]}).replace("'", '"')
        ),
    )
    tab.open("/playground?model=demo@1", "#answers table")
    tab.page.check("[value=row]")
    tab.page.fill("#row", row)
    tab.page.click("#question button")
    tab.page.wait_for_selector("#answers bdi:has-text('onerror')")
    shown = tab.page.locator("#answers section").first.locator("bdi").all_inner_texts()
    assert HOSTILE[0] in shown
    assert HOSTILE[1] in shown
    assert r"\u{202e}right to left" in shown
    assert r"nul\u{0000}bell\u{0007}" in shown
    assert "(empty)" in shown
    assert any(word.endswith("... (cut)") for word in shown)
    tab.require_quiet()


def test_why_not_by_keyboard_alone(opened: Opened) -> None:
    tab = opened()
    page, keys = tab.page, tab.page.keyboard
    tab.open("/", "#models .card dl")
    keys.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    for _ in range(4):  # the mark, then three pages
        keys.press("Tab")
    keys.press("Enter")
    page.wait_for_selector("#model:enabled")
    page.focus("#model")
    keys.press("ArrowDown")  # from bare@1 to demo@1
    for _ in range(8):
        keys.press("Tab")
        if page.evaluate("document.activeElement.id") == "word":
            break
    keys.type("word120")
    keys.press("Enter")
    page.wait_for_selector("ol.stages li.dropped, ol.stages li.passed")
    assert "word120" in page.inner_text("#reasons")
    tab.require_quiet()


def test_the_playground_marks_differences_and_leads_to_their_reason(opened: Opened) -> None:
    tab = opened()
    tab.open("/playground?model=demo@1", "#answers table")
    tab.page.wait_for_selector("#answers .notice:has-text('differ')")
    link = tab.page.locator("#answers tr.only a").first
    assert link.inner_text().startswith("why not by ")
    link.click()
    tab.page.wait_for_selector("#reasons ol.stages li.dropped")
    tab.require_quiet()


def test_a_page_paints_before_the_server_answers(opened: Opened) -> None:
    tab = opened()
    tab.page.route("**/api/**", lambda route: None)  # never answered
    for path in READY:
        tab.page.goto(tab.address + path)
        tab.page.evaluate(PAINTED)


def test_the_slider_the_table_and_the_plot_say_what_auto_takes(opened: Opened) -> None:
    tab = opened()
    tab.open("/points?model=demo@1", "#chosen b")
    assert "screen probes=3" in tab.page.inner_text("#chosen")
    assert "100 % (proven)" in tab.page.inner_text("#table")
    assert "AUTO's choice" in tab.page.inner_text("#plot .u-legend")
    assert "probes=3" in tab.page.inner_text("#table tr.marked")
    tab.page.focus("#least")
    tab.page.keyboard.press("End")
    tab.page.wait_for_selector("#chosen:has-text('proven')")
    tab.page.keyboard.press("PageDown")
    tab.page.wait_for_selector("#chosen:not(:has-text('null'))")
    tab.require_quiet()


def test_a_mistake_is_shown_where_it_was_made(opened: Opened) -> None:
    tab = opened()
    tab.open("/why-not?model=demo@1", "#model:enabled")
    tab.page.fill("#word", "word20")
    tab.page.click("#question button[type=submit]")
    tab.page.wait_for_selector("#reasons .notice")
    tab.page.fill("#word", "no such word")
    tab.page.click("#question button[type=submit]")
    tab.page.wait_for_selector("#question + #problem:has-text('a word of the vocabulary')")
    assert tab.page.inner_text("#reasons") == ""
    tab.errors.clear()  # the browser notes the status 400
    tab.require_quiet()


def test_signing_in_and_out(opened: Opened, loop: Loop, routes: Routes, tmp_path: Path) -> None:
    file = write_api_keys(tmp_path, f"console:{KEY}\n")
    with listening(loop, routes, ApiKeys(file)) as address:
        tab = opened(400, "dark", at=address)
        tab.open("/", "input[type=password]")
        tab.require_sound()
        tab.page.fill("input[type=password]", "wrong")
        tab.page.keyboard.press("Enter")
        tab.page.wait_for_selector("text=no API key of this server")
        tab.errors.clear()  # the status 403
        tab.page.fill("input[type=password]", KEY)
        tab.page.keyboard.press("Enter")
        tab.page.wait_for_selector("#models .card dl")
        tab.require_quiet()
        tab.page.click("text=Sign out")
        tab.page.wait_for_selector("input[type=password]")


def test_a_server_at_work_that_goes(opened: Opened, measured: Running) -> None:
    measured.client.topk(make_hidden(1), 1)
    tab = opened(at=f"http://127.0.0.1:{measured.server.http_port}")
    tab.open("/", "#figures .figure")
    assert tab.page.is_hidden("#idle")
    tab.page.wait_for_selector("#rate canvas")
    tab.require_sound()
    tab.page.context.set_offline(True)
    tab.page.wait_for_selector("#problem:has-text('does not answer')")
    assert tab.page.inner_text("#state") == "no answer"
