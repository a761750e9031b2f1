"""Every link of the documentation leads to a file of the checkout."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted(
    [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("demo/*.md"),
    ]
)
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(
    r"""
    \]\(<?([^)\s>]+)             # [text](target) and ![text](target "title")
    | ^\[[^\]]+\]:\s+<?([^\s>]+)  # [name]: target
    | \b(?:src|href)="([^"]+)"   # <img src="target">
    """,
    re.MULTILINE | re.VERBOSE,
)


def links(text: str) -> list[str]:
    """The targets within the checkout, without their fragments."""
    found = ["".join(groups) for groups in LINK.findall(FENCED.sub("", text))]
    local = [target.partition("#")[0] for target in found if ":" not in target]
    return [target for target in local if target]


def test_links_are_found() -> None:
    text = (
        '[a](docs/a.md#part) ![b](b.svg "title") [![c](c.svg)](d.md) [e](https://e) [f](#g)\n'
        '[h]: i.md\n<img src="j.svg">\n```\n[k](l.md)\n```\n'
    )
    assert links(text) == ["docs/a.md", "b.svg", "c.svg", "d.md", "i.md", "j.svg"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_to_a_file(page: Path) -> None:
    targets = links(page.read_text(encoding="utf-8"))
    assert [target for target in targets if not (page.parent / target).exists()] == []
