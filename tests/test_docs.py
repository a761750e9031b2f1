"""Every link of the documentation leads to a file; every page and public name can be found."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.hooks import definitions

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
OTHERS = ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("benchmarks/**/*.md")
PAGES = sorted([*OTHERS, *ROOT.glob("docs/**/*.md"), *ROOT.glob("demo/*.md")])
REFERENCE = {
    name
    for page in DOCS.glob("reference/*.md")
    for name in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
}
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(
    r"""
    \]\(<?([^)\s>]+)             # [text](target) and ![text](target "title")
    | ^\[[^\]]+\]:\s+<?([^\s>]+)  # [name]: target
    | \b(?:src|href)="([^"]+)"   # <img src="target">
    """,
    re.MULTILINE | re.VERBOSE,
)


def fragments(text: str) -> list[tuple[str, str]]:
    """The targets within the checkout, each with its fragment or an empty one."""
    found = ["".join(groups) for groups in LINK.findall(FENCED.sub("", text))]
    parts = [target.partition("#") for target in found if ":" not in target]
    return [(target, fragment) for target, _, fragment in parts]


@cache
def places(path: Path) -> set[str]:
    """The fragments that a file has: headings of a page, definitions of a source."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        return {name for name, _ in definitions(ast.parse(text))}
    headings = re.findall(r"^#+ (.*)$", FENCED.sub("", text), re.MULTILINE)
    plain = [re.sub(r"\]\([^)]*\)", "", heading) for heading in headings]
    return {re.sub(r"[^\w\s-]", "", each).strip().lower().replace(" ", "-") for each in plain}


def test_every_relative_link_leads_to_a_file_and_a_place_in_it() -> None:
    """So CONTRIBUTING.md names functions that there are."""
    lost = []
    for page in PAGES:
        for target, fragment in fragments(page.read_text(encoding="utf-8")):
            path = (page.parent / target) if target else page
            if not path.exists() or (fragment and fragment not in places(path)):
                lost.append(f"{page}: {target}#{fragment}")
    assert lost == []


def test_pages_are_short_and_fit_the_site() -> None:
    """Generated references count apart."""
    texts = {page.name: page.read_text(encoding="utf-8") for page in DOCS.glob("*.md")}
    assert sum(len(text.split()) for text in texts.values()) <= 27_000
    for name, text in texts.items():
        code = "".join(FENCED.findall(text)) + "\n".join(re.findall(r"^    .*", text, re.MULTILINE))
        assert [line for line in code.splitlines() if len(line) > 104] == [], name
        heads = re.findall(r"^\|(?:---\|)+$", text, re.MULTILINE)
        assert all(head.count("---") <= 5 for head in heads), name


def pages_of(entry: Any) -> Iterator[str]:
    """The pages that an entry of the site's navigation leads to."""
    if isinstance(entry, str):
        yield entry
    else:
        for inside in entry.values() if isinstance(entry, dict) else entry:
            yield from pages_of(inside)


def test_every_page_is_in_the_navigation() -> None:
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    pages = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    in_docs = [page for page in pages_of(settings["nav"]) if not page.startswith("checkout/")]
    assert sorted(in_docs) == sorted(pages)


@pytest.mark.parametrize(
    "folder", ["index", "decoding", "client", "index_builder", "server", "training/losses", "heads"]
)
def test_every_public_name_is_in_the_reference(folder: str) -> None:
    """What losses/ exports is what `logitsieve.training` does."""
    package = folder.partition("/")[0]
    [init] = ROOT.glob(f"*/logitsieve/{folder}/__init__.py")
    [names] = [
        ast.literal_eval(node.value)
        for node in ast.parse(init.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    assert {f"logitsieve.{package}.{name}" for name in names} - REFERENCE == set()


def test_every_module_of_the_api_is_in_the_reference() -> None:
    modules = {path.stem for path in ROOT.glob("core/logitsieve/api/*.py")} - {"__init__"}
    assert {f"logitsieve.api.{module}" for module in modules} <= REFERENCE
