"""Every page that has measurements, as the raw results have it; which raw file feeds which page."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from benchmarks import raw
from benchmarks.load.tables import markdown as load_markdown
from benchmarks.race.table import markdown as race_markdown
from benchmarks.tables import (
    building,
    draws,
    experiments,
    llamacpp,
    races,
    results,
    scale,
    service,
)
from benchmarks.tables.figures import markdown
from benchmarks.tables.ledger import unaccounted
from benchmarks.tables.page import Rendered, render
from benchmarks.tables.sentences import SENTENCES

ROOT = raw.RESULTS.parents[1]
PAGES = sorted(
    str(path.relative_to(ROOT)) for path in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]
)
COMMANDS = {  # what measures each raw file anew, by the beginning of its name
    "screen-avx2": "`AVX2 make bench OUT=screen-avx2`",
    "screen": "`make bench`, then `python -m benchmarks.plots`",
    "kernels": "`python -m benchmarks.kernels`",
    "rpc": "`python -m benchmarks.rpc`",
    "console": "`python -m benchmarks.console`",
    "load": "`python -m benchmarks.load`",
    "draws": "`python -m benchmarks.draws lm-docs`, then the others",
    "building": "`python -m benchmarks.building --workers 2 1`",
    "llamacpp": "`python -m benchmarks.llamacpp gemma-3-270m`, then with `--judge 100000`",
    "scale": "`python -m benchmarks.scale`",
    "exactness": "`python -m benchmarks.exactness nmt`, then `demo`",
    "race/growth": "`python -m benchmarks.race.growth --again`",
    "race/proof": "`python -m benchmarks.race.proof`",
    "race/": "`python -m benchmarks.race {name} --cold`",
}
SEVERAL = (results.GROWTH, "draws", "exactness", "llamacpp")  # files of several runs by their names


def documents() -> Iterator[tuple[str, Rendered]]:
    """Each page and each table beside raw results, by its path from the root of the checkout."""
    for page in PAGES:
        done = rendered(page)
        done.problems += unaccounted(page, done)
        yield page, done
    for name in raw_names():
        found = raw.read(raw.RESULTS / f"{name}.json.gz")
        path = str((raw.RESULTS / f"{name}.md").relative_to(ROOT))
        if name == "load":
            yield path, Rendered(load_markdown(found))
        elif "points" in found:
            yield path, Rendered(race_markdown(found))


def rendered(page: str, **other: Callable[[], str]) -> Rendered:
    """One page of the documentation; `other` tables stand in for those of their names."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return render(text, TABLES | other, SENTENCES.get(page, list))


def raw_names() -> list[str]:
    """Every raw file: its path below benchmarks/results, without .json.gz."""
    files = sorted(raw.RESULTS.rglob("*.json.gz"))
    return [str(path.relative_to(raw.RESULTS)).removesuffix(".json.gz") for path in files]


def index() -> str:
    """Each raw file, its command, when it was measured, and the pages that it feeds."""
    fed: dict[str, list[str]] = {}
    for page in PAGES:
        with results.noted() as names:
            rendered(page, index=str)
        for name in names:
            fed.setdefault(name, []).append(page.removeprefix("docs/"))
    rows = []
    for name in raw_names():
        found = raw.read(raw.RESULTS / f"{name}.json.gz")
        parts = list(found.values()) if name in SEVERAL else [found]
        dates = sorted({part.get("machine", part)["date"][:10] for part in parts})
        rows.append([f"`{name}`", command(name), ", ".join(dates), ", ".join(fed.get(name, []))])
    return markdown(["raw file", "measured by", "on", "feeds"], rows)


def command(name: str) -> str:
    first = next(text for start, text in COMMANDS.items() if name.startswith(start))
    return first.format(name=name.rpartition("/")[2])


TABLES = (
    races.TABLES
    | service.TABLES
    | building.TABLES
    | draws.TABLES
    | experiments.TABLES
    | llamacpp.TABLES
    | scale.TABLES
    | {"index": index}
)
