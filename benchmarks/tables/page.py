"""A page with the tables that stand between `<!-- table: NAME -->` and `<!-- end -->`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

BLOCK = re.compile(r"(<!-- table: (?P<name>[\w ,-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


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
