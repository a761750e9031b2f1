"""Tokens a second of published models in Transformers, with their own layer and with a decoder."""

import statistics
from collections.abc import Callable

from benchmarks.tables.figures import digits, markdown
from benchmarks.tables.results import load


def adapter() -> str:
    """A row for each model and way of generating: whole steps, and the output layer alone."""
    rows, heads = [], []
    for name, found in load("huggingface").items():
        for way, by_head in found["ways"].items():
            heads = [f"`{head}`" for head in by_head]
            times = {
                key: [one[key]["median"] for one in by_head.values()]
                for key in ("full_us", "layer_us", "attached_us", "head_us")
            }
            full, layer = (digits(statistics.median(times[key])) for key in ("full_us", "layer_us"))
            cells = (
                f"{full / ours:.2f}x ({layer / head:.1f}x)"
                for full, layer, ours, head in zip(*times.values(), strict=True)
            )
            same = min(one["same"] for one in by_head.values())
            rows.append([name, way, f"{full} ({layer})", *cells, f"{same:.0%}"])
    return markdown(["model", "way", "µs a step (the layer)", *heads, "same ids"], rows)


TABLES: dict[str, Callable[[], str]] = {"huggingface": adapter}
