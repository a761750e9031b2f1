"""Tokens a second of published models in Transformers, with their own layer and with a decoder."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.tables.figures import UNMEASURED, digits, markdown
from benchmarks.tables.results import load, present


def adapter() -> str:
    """A row for each model, way of generating and head."""
    if not present("huggingface"):
        return UNMEASURED
    rows = []
    for name, found in load("huggingface").items():
        for way, heads in found["ways"].items():
            for head, one in heads.items():
                full, ours = one["full_us"]["median"], one["attached_us"]["median"]
                layer, found_us = one["layer_us"]["median"], one["head_us"]["median"]
                rows.append(
                    [
                        name,
                        way,
                        f"`{head}`",
                        f"{digits(full)}, {digits(ours)}",
                        f"{full / ours:.2f}x",
                        f"{digits(layer)}, {digits(found_us)}",
                        f"{layer / found_us:.1f}x",
                        f"{one['same']:.1%}",
                    ]
                )
    head = ["model", "way", "head", "µs a step: full, attached", ""]
    return markdown([*head, "of it the output layer", "", "same ids"], rows)


TABLES: dict[str, Callable[[], str]] = {"huggingface": adapter}
