"""A page whose tables and figures follow the raw results.

A table stands between `<!-- table: NAME -->` and `<!-- end -->` and is written whole. A sentence is
written once more beside the expressions of its figures (sentences.py); its words find it on the
page, wherever lines break, and its figures are replaced there. The page itself stays plain prose.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from benchmarks.tables.figures import FIGURE, is_number, plain

BLOCK = re.compile(r"(<!-- table: (?P<name>[\w ,-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
NUMBER = r"[-+]?[\d.,]*\d"
NAME = r"[^|,;:()]+?"


@dataclass
class Rendered:
    """The page as the raw results have it, what could not be placed, and what is accounted for."""

    text: str
    problems: list[str] = field(default_factory=list)
    covered: list[tuple[int, int]] = field(default_factory=list)  # of `text`


def render(
    text: str,
    tables: Mapping[str, Callable[[], str]],
    quoted: Callable[[], Iterable[str]],
) -> Rendered:
    """`text` with its tables and the figures of the quoted sentences written anew.

    A table without its raw file stays as it is, and is not accounted for.
    """
    problems: list[str] = []
    unmeasured: set[str] = set()
    sentences: list[str] = []
    try:
        sentences.extend(quoted())
    except LookupError as error:
        problems.append(f"a sentence quotes what was not measured: {error!r}")

    def table(block: re.Match[str]) -> str:
        make = tables.get(block["name"])
        if make is None:
            problems.append(f"there is no table {block['name']!r}")
            return block[0]
        try:
            return f"{block[1]}\n{plain(make())}\n{block[3]}"
        except FileNotFoundError:
            unmeasured.add(block["name"])
            return block[0]
        except LookupError as error:
            problems.append(f"table {block['name']!r} shows what was not measured: {error!r}")
            return block[0]

    text = BLOCK.sub(table, text)
    covered = []
    for sentence in sentences:
        places = list(pattern(sentence).finditer(text))
        if len(places) != 1:
            problems.append(f"found {len(places)} times, not once: {plain(sentence)!r}")
            continue
        text = replaced(text, places[0], FIGURE.findall(sentence))
    for sentence in sentences:
        covered += [place.span() for place in pattern(sentence).finditer(text)]
    written = (block for block in BLOCK.finditer(text) if block["name"] not in unmeasured)
    covered += [block.span() for block in written]
    return Rendered(text, problems, covered)


def pattern(sentence: str) -> re.Pattern[str]:
    """The sentence with a group for each figure; any run of blanks may stand for a blank."""
    parts = FIGURE.split(sentence)
    parts[::2] = [r"\s+".join(map(re.escape, re.split(r"\s+", part))) for part in parts[::2]]
    parts[1::2] = [f"({NUMBER if is_number(part) else NAME})" for part in parts[1::2]]
    return re.compile(rf"(?<![\d.,]){''.join(parts)}")


def replaced(text: str, place: re.Match[str], figures: list[str]) -> str:
    """`text` with each group of the match replaced by its figure."""
    for number in range(len(figures), 0, -1):
        start, end = place.span(number)
        text = text[:start] + figures[number - 1] + text[end:]
    return text
