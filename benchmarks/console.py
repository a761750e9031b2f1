"""What the console costs: calls beside it, and its first paint. `python -m benchmarks.console`.

A server with the console answers TopK under load while nobody looks, and while somebody does: the
overview asks for /api/overview every two seconds, and after five of them the page is loaded again.
Runs alternate. The clients keep to one half of the cores, the server to the other. Then Chromium
paints every page some times, each in a profile of its own; milliseconds are those of its
Performance API, from the start of the navigation to the first text or picture.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any
from urllib.request import urlopen

import numpy as np

from benchmarks import raw
from benchmarks.load.clients import Plan
from benchmarks.load.servers import load, with_console
from benchmarks.machine import describe
from benchmarks.rpc import DATA, K, build_index
from logitsieve.index_builder.data.arrays import load_array
from logitsieve.server.console.pages import PAGES, render, static_files

OUT = raw.RESULTS / "console.json.gz"
RUNS, PAINTS = 5, 5
ROWS, CLIENTS = 8, 4
EVERY_S = 2.0
LOADED_AFTER = 5  # refreshes
PAINT = "performance.getEntriesByName('first-contentful-paint')[0].startTime"
OVERVIEW = (
    "",
    "static/console.css",
    "static/console.js",
    "static/overview.js",
    "static/uplot/uPlot.js",
    "static/uplot/uPlot.css",
    "static/icon.svg",
)


def main() -> None:
    """Measure, write the raw numbers, print them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA, help="lm-docs-10k-200.npz")
    parser.add_argument("--out", type=Path, default=OUT, help="raw results, JSON")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        index = build_index(options.data, Path(scratch))
        contexts = Path(scratch) / "contexts.npy"
        np.save(contexts, np.asarray(load_array(f"{options.data}:H_test")[:4096], np.float32))
        results = {"machine": describe()} | measure(
            index.path.parent.parent, contexts, options.seconds
        )
    raw.write(options.out, results)
    print(results)


def measure(models: Path, contexts: Path, seconds: float) -> dict[str, Any]:
    """Latencies in microseconds of each run, and paints in milliseconds by page."""
    cpus = sorted(os.sched_getaffinity(0))
    half = max(1, len(cpus) // 2)
    ours, theirs = cpus[:half], cpus[half:] or cpus
    with with_console(models, ours) as (address, console):
        plan = Plan(
            address=address, contexts=str(contexts), rows=ROWS, k=K,
            clients=CLIENTS, seconds=seconds, cpus=theirs,
        )  # fmt: skip
        runs: dict[str, list[dict[str, float]]] = {"without": [], "with": []}
        for _ in range(RUNS):
            runs["without"].append(load(plan).us)
            with looked_at(console):
                runs["with"].append(load(plan).us)
        painted = paints(console)
    return {
        "rows": ROWS,
        "clients": CLIENTS,
        "seconds": seconds,
        "runs": runs,
        "ratios_p99": [b["p99"] / a["p99"] for a, b in zip(*runs.values(), strict=True)],
        "paint_ms": painted,
        "bytes": sizes(),
    }


@contextmanager
def looked_at(console: str) -> Iterator[None]:
    """The requests of a browser that shows the overview."""
    ended = Event()

    def look() -> None:
        asked = 0
        while True:
            for path in OVERVIEW if asked % LOADED_AFTER == 0 else ():
                get(console + path)
            get(f"{console}api/overview")
            asked += 1
            if ended.wait(EVERY_S):
                return

    thread = Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def get(url: str) -> bytes:
    with urlopen(url, timeout=60) as reply:
        content: bytes = reply.read()
    return content


def paints(console: str) -> dict[str, float]:
    """Milliseconds to the first paint by page: medians."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        options: dict[str, Any] = {"args": ["--no-sandbox", "--disable-gpu"]}
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), **options)

        def first(path: str) -> float:
            with browser.new_context() as context:
                page = context.new_page()
                page.goto(console + path.removeprefix("/"))
                page.wait_for_function("performance.getEntriesByType('paint').length > 1")
                return float(page.evaluate(PAINT))

        found = {
            page.name: statistics.median(first(page.path) for _ in range(PAINTS)) for page in PAGES
        }
        browser.close()
    return found


def sizes() -> dict[str, int]:
    """Bytes of all that the console can send: pages without sign-in, and files."""
    pages = sum(len(render(page.name, signs_in=False, title=page.title)) for page in PAGES)
    return {"pages": pages, "files": sum(len(file.content) for file in static_files().values())}


if __name__ == "__main__":
    main()
