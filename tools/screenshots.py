"""Take the pictures of docs/console.md from a running console: `python -m tools.screenshots`.

`make demo && make serve` is the server; Chromium and Playwright have to be installed.
"""

import base64
import shutil
import sys
from pathlib import Path

from playwright.sync_api import ViewportSize, sync_playwright

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SHOTS = {  # picture -> page, what it shows when it is done
    "console-playground": ("/playground?model=demo@1", "#answers table"),
    "console-why-not": (
        "/why-not?model=demo@1&kept=4&k=10&word=%23500&head=screen",
        "#reasons ol.stages",
    ),
    "console-points": ("/points?model=demo@1", "#table tr.marked"),
}
SIZE = ViewportSize(width=1280, height=800)
QUALITY = 85  # of WebP


def main(address: str = "http://127.0.0.1:8080") -> None:
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE)
        for name, (path, ready) in SHOTS.items():
            page.goto(address + path)
            page.wait_for_selector(ready)
            options = {"format": "webp", "quality": QUALITY}
            shot = page.context.new_cdp_session(page).send("Page.captureScreenshot", options)
            (IMAGES / f"{name}.webp").write_bytes(base64.b64decode(shot["data"]))
        browser.close()


if __name__ == "__main__":
    main(*sys.argv[1:2])
