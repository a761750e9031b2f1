"""Tokens a second in llama.cpp, and greedy tokens beside the float64 argmax."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.tables.figures import ABSENT, digits, markdown
from benchmarks.tables.results import load

PEER = "llama.cpp"
KINDS = ("F16", "Q8_0", "Q4_0")
HEADS = ("certified", "screen")


def speeds() -> str:
    """A row for each shape, type and number of threads."""
    rows, before = [], ""
    for shape, kind, one in kinds():
        shape, before = ABSENT if shape == before else shape, shape
        for threads in ("1", "2"):
            if threads not in one:
                continue
            per_s = {name: found["tokens_per_s"][0] for name, found in one[threads].items()}
            rows.append(
                [
                    shape,
                    kind,
                    threads,
                    digits(per_s[PEER]),
                    *(
                        f"{digits(per_s[head])}, {digits(per_s[head] / per_s[PEER])}x"
                        for head in HEADS
                    ),
                    f"{digits(per_s['body'])}, {digits(per_s['body'] / per_s[PEER])}x",
                    f"{one[threads]['certified']['proven'][0]:.0%}",
                ]
            )
            shape = kind = ABSENT
    head = ["model", "type", "threads", "llama.cpp's own head", *(f"`{head}`" for head in HEADS)]
    return markdown([*head, "no head: the limit", "proven"], rows)


def judged() -> str:
    """A row for each shape and type that was judged."""
    rows = []
    for shape, kind, one in kinds():
        if found := one.get("judged"):
            peer = found["llamacpp_wrong"] / found["llamacpp_tokens"]
            rows.append(
                [
                    shape,
                    kind,
                    f"{found['tokens']:,}",
                    f"{found['wrong']:,}",
                    f"{found['proven'] / found['tokens']:.1%}",
                    f"{found['llamacpp_wrong']:,} of {found['llamacpp_tokens']:,} ({peer:.2%})",
                ]
            )
    head = ["model", "type", "tokens", "`certified` differs", "proven", "llama.cpp differs"]
    return markdown(head, rows)


def kinds() -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Each shape's sizes, and each type with its results."""
    for name, found in load("llamacpp").items():
        sizes = found["shape"]
        layers = f"{sizes['layers']} layer{'s' * (sizes['layers'] > 1)}"
        label = f"{name}: V = {sizes['rows']:,}, D = {sizes['dim']:,}, {layers}"
        for kind, one in found.items():
            if kind in KINDS:
                yield label, kind, one


TABLES: dict[str, Callable[[], str]] = {"llamacpp": speeds, "llamacpp-judged": judged}
