"""Tokens a second of published models in llama.cpp, and best tokens beside the float64 argmax."""

import re
from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

from benchmarks.llamacpp.contenders import BODY, DRAWN, HEADS, PEER
from benchmarks.tables.figures import ABSENT, digits, markdown
from benchmarks.tables.results import load


def speeds(way: str) -> str:
    """A row for each model, build, kind of text and number of threads; then what each build is."""
    rows, about = [], []
    heads = [name for name in HEADS if any(name in one for *_, one in runs(way))]
    for label, build, kind, threads, one in runs(way):
        per_s = {name: found["tokens_per_s"][0] for name, found in one.items()}
        times = {name: f"{digits(each)}, {each / per_s[PEER]:.2f}x" for name, each in per_s.items()}
        scanned = {name: f"{one[name]['scanned'][0]:,.0f}" for name in heads if name in one}
        rows.append(
            [
                label,
                kind,
                threads,
                digits(per_s[PEER]),
                *(times.get(name, ABSENT) for name in heads),
                times[BODY],
                ", ".join(scanned.values()),
            ]
        )
        features = instructions(build["system_info"])
        if (line := f"{build['cpu']}; {build['name']}: {features}.") not in about:
            about.append(line)
    head = ["model", "text", "threads", "llama.cpp's own head", *(f"`{name}`" for name in heads)]
    head += ["no head: the limit", "rows of W a token"]
    return markdown(head, merged(rows)) + "\n".join(["", *about, ""])


def instructions(system_info: str) -> str:
    """The features that llama.cpp reports, without those that it lacks."""
    return ", ".join(re.findall(r"(\w+) = 1", system_info))


def first(
    raw: str = "llamacpp", ways: Collection[str] = ("greedy",), about_builds: bool = True
) -> str:
    """A row for each model, way and number of threads: each kind by llama.cpp's fastest build."""
    fastest: dict[tuple[str, ...], dict[str, dict[str, float]]] = {}
    about: dict[str, None] = {}
    for way in ways:
        for name, build, kind, threads, one in runs(way, raw):
            if threads != "1" and not about_builds:
                continue
            of_row = fastest.setdefault(
                (name.partition(",")[0].partition(":")[0], way, threads), {}
            )
            per_s = {who: found["tokens_per_s"][0] for who, found in one.items()}
            if per_s[PEER] > of_row.get(kind, {PEER: 0.0})[PEER]:
                of_row[kind] = per_s
            about[f"{build['cpu']}; {build['name']}: {instructions(build['system_info'])}."] = None
    names = [*HEADS, BODY]
    rows = []
    for (model, way, threads), kinds in fastest.items():
        speeds = sorted(per_s[PEER] for per_s in kinds.values())
        named = [model] + [way] * (len(ways) > 1)
        named += ["one thread" if threads == "1" else f"{threads} threads"] * about_builds
        cells = [", ".join(named), f"{digits(speeds[0])} to {digits(speeds[-1])}"]
        for name in names:
            times = sorted(one[name] / one[PEER] for one in kinds.values() if name in one)
            cells.append(f"{times[0]:.2f}x to {times[-1]:.2f}x" if times else "")
        rows.append(cells)
    kept = [name for i, name in enumerate(names, 2) if any(row[i] for row in rows)]
    head = ["tokens a second", "llama.cpp", *(f"`{name}`" for name in kept if name != BODY)]
    table = markdown([*head, "no head"], [[cell for cell in row if cell] for row in rows])
    return "\n".join([table, *about, ""]) if about_builds else table


def judged() -> str:
    """A row for each model: tokens of all kinds of text."""
    heads = [PEER, *(name for name in HEADS if any(name in one for _, one in judgements()))]
    rows = []
    for name in dict.fromkeys(name for name, _ in judgements()):
        ones = [one for model, one in judgements() if model == name]
        tokens = sum(max(each["tokens"] for each in one.values()) for one in ones)
        found = ([one[head] for one in ones if head in one] for head in heads)
        rows.append([name, f"{tokens:,}", *(wrong(each) if each else ABSENT for each in found)])
    names = (name if name == PEER else f"`{name}`" for name in heads)
    return markdown(["model", "tokens", *names], rows)


def judgements() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each model with what was counted for each head, once for each kind of text."""
    for name, found in load("llamacpp").items():
        for one in found.get("judged", {}).values():
            yield name, one


def wrong(ones: list[dict[str, Any]]) -> str:
    """How many tokens differ, as a share too, and how many were proven."""
    tokens, many = (sum(one[field] for one in ones) for field in ("tokens", "wrong"))
    proven = sum(one.get("proven") or 0 for one in ones) / tokens
    share = f" ({many / tokens:.2%})" * bool(many)
    return f"{many:,}{share}" + f", {proven:.0%} proven" * bool(proven)


def merged(rows: list[list[str]]) -> list[list[str]]:
    """The rows without first cells that say what the row above says."""
    found, above = [], ["", ""]
    for row in rows:
        first = ABSENT if row[0] == above[0] else row[0]
        second = ABSENT if row[:2] == above[:2] else row[1]
        found.append([first, second, *row[2:]])
        above = row
    return found


def runs(
    way: str, raw: str = "llamacpp"
) -> Iterator[tuple[str, dict[str, Any], str, str, dict[str, Any]]]:
    """Each model's label, build, kind of text, number of threads, and results."""
    for name, found in load(raw).items():
        shape = f"{name}: V = {found['index']['vocab_size']:,}, D = {found['index']['dim']:,}"
        for build, of_build in found.get("builds", {}).items():
            label = shape if build == "wheel" else f"{shape}, {build} build"
            for kind, by_threads in of_build.get(way, {}).items():
                for threads, one in by_threads.items():
                    yield label, of_build, kind, threads, one


TABLES: dict[str, Callable[[], str]] = {
    "llamacpp, first": partial(first, about_builds=False),
    "llamacpp": partial(speeds, "greedy"),
    "llamacpp-drawn": partial(first, "llamacpp-drawn", DRAWN, about_builds=False),
    "llamacpp-judged": judged,
    "llamacpp-avx512": partial(first, "llamacpp-avx512"),
}
