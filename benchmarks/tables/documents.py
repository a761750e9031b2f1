"""Every page with tables, as the raw results have it; which command measured each raw file."""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from benchmarks import raw
from benchmarks.race.table import markdown as race_markdown
from benchmarks.tables import draws, engines, papers, published, races, service
from benchmarks.tables.figures import markdown

BLOCK = re.compile(r"(<!-- table: (?P<name>[\w ,-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
ROOT = raw.RESULTS.parents[1]
BESIDE = "README", "softmaxes", "engines", "kernels", "batches", "draws", "steps", "calls"
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in [
        ROOT / "README.md",
        ROOT / "benchmarks/README.md",
        ROOT / "benchmarks/papers/README.md",
        *(raw.RESULTS / f"{name}.md" for name in BESIDE),
        *ROOT.glob("docs/**/*.md"),
    ]
)
FROZEN = "at commit {}; no longer in the tree"
EARLIER, LATER = FROZEN.format("aa2981c"), FROZEN.format("6d826131")
COMMANDS = {  # what measures each raw file, by the beginning of its name
    "screen-avx2": "`AVX2 make bench OUT=screen-avx2`",
    "screen": "`make bench`, then `python -m benchmarks.plots`",
    "kernels": f"`python -m benchmarks.kernels` {LATER}",
    "model-kernels": "`python -m benchmarks.kernels --model NAME INDEX CONTEXTS ...`, also by AVX2",
    "batches-amx": "as `batches`, on a CPU with AMX, SmolLM2 in a run of its own",
    "batches": "`python -m benchmarks.batches MODELS/lm/1`, several at once",
    "rpc": "`python -m benchmarks.rpc`",
    "console": f"`python -m benchmarks.console` {EARLIER}",
    "load": f"`python -m benchmarks.load` {LATER}",
    "draws": "`python -m benchmarks.draws lm-docs`, then the others",
    "default_draws": "`python -m benchmarks.default_draws smollm2 INDEX CONTEXTS`, then the others",
    "watermark": "`python -m benchmarks.watermark`",
    "translate": "`python -m benchmarks.translate MODELS/nmt/1 --also MODELS/nmt/2`",
    "building": f"`python -m benchmarks.building --workers 2 1` {EARLIER}",
    "llamacpp-engines-avx512": "as `llamacpp-engines`, on a CPU with AVX-512",
    "llamacpp-engines": "`python -m benchmarks.llamacpp.engines`, `python -m benchmarks.plots`",
    "funnel": "`python -m benchmarks.funnel NAME INDEX CONTEXTS`, `python -m benchmarks.plots`",
    "llamacpp-clients": "`python -m benchmarks.llamacpp.clients`",
    "llamacpp-grammars": "`python -m benchmarks.llamacpp.grammars`",
    "llamacpp-drawn": "as `llamacpp` but for `--judge`, with each choice of `--draw`",
    "llamacpp": "`GOMP_SPINCOUNT=5000 python -m benchmarks.llamacpp gemma-3-270m`, then with "
    "`--judge 20000`; then `smollm2-135m`",
    "huggingface": "`python -m benchmarks.huggingface smollm2-135m`, then `gemma-3-270m`",
    "exactness": f"`python -m benchmarks.exactness nmt`, then `demo`, {EARLIER}",
    "race/proof": f"`python -m benchmarks.race.proof` {EARLIER}",
    "race/synthetic": "`python -m benchmarks.race {name}` " + FROZEN.format("b6cfe73"),
    "race/lm-docs-70k": "`python -m benchmarks.race {name}{options}` " + LATER,
    "race/": "`python -m benchmarks.race {name}{options}`",
}
# Files of several runs by their names.
ENGINES = "llamacpp-engines", "llamacpp-engines-avx512"
LLAMA_CPP = "llamacpp", "llamacpp-drawn", *ENGINES, "llamacpp-clients", "llamacpp-grammars"
SEVERAL = ("draws", "default_draws", "exactness", *LLAMA_CPP, "huggingface", "model-kernels")


def documents() -> Iterator[tuple[str, str]]:
    """Each page and each table next to raw results: its path from the root, and its text."""
    for page in PAGES:
        yield page, render((ROOT / page).read_text(encoding="utf-8"), TABLES)
    for name in raw_names():
        found = raw.load(name)
        path = str((raw.RESULTS / f"{name}.md").relative_to(ROOT))
        if "points" in found:
            yield path, race_markdown(found)


def render(text: str, tables: Mapping[str, Callable[[], str]]) -> str:
    """Return `text` with every table written from the raw results; ValueError for other names."""

    def table(block: re.Match[str]) -> str:
        make = tables.get(block["name"])
        if make is None:
            raise ValueError(
                f"there is no table {block['name']!r}, allowed: {', '.join(sorted(tables))}"
            )
        return f"{block[1]}\n{make()}\n{block[3]}"

    return BLOCK.sub(table, text)


def raw_names() -> list[str]:
    """Every raw file: its path below benchmarks/results, without .json.gz."""
    files = sorted(raw.RESULTS.rglob("*.json.gz"))
    return [str(path.relative_to(raw.RESULTS)).removesuffix(".json.gz") for path in files]


def index() -> str:
    """Each raw file, its command, and when it was measured."""
    rows = []
    for name in raw_names():
        found = raw.load(name)
        parts = list(found.values()) if name in SEVERAL else [found]
        dates = sorted({part.get("machine", part)["date"][:10] for part in parts})
        rows.append([f"`{name}`", command(name, found), ", ".join(dates)])
    return markdown(["raw file", "measured by", "on"], rows)


def command(name: str, found: Mapping[str, Any]) -> str:
    if "command" in found:
        return f"`{found['command']}`"
    first = next(text for start, text in COMMANDS.items() if name.startswith(start))
    options = " --cold" * (found.get("cleared_bytes", 0) > 0)
    return first.format(name=name.rpartition("/")[2], options=options)


TABLES: dict[str, Callable[[], str]] = (
    races.TABLES
    | published.TABLES
    | engines.TABLES
    | service.TABLES
    | draws.TABLES
    | papers.TABLES
    | {"index": index}
)
