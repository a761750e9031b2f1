from __future__ import annotations

from xml.etree import ElementTree

import numpy as np
import pytest

from logitsieve.index_builder import report_plots as plots

COVERAGE = np.linspace(0.1, 1, 5)
CURVE = plots.Curve(COVERAGE, {1: COVERAGE}, {1: COVERAGE}, 10 * COVERAGE, 0.5)
PLOTS = {
    "speed_precision": lambda: plots.speed_precision([point("exact", 1), point("a$b$", 1)]),
    "cascade": lambda: plots.cascade(CURVE),
    "histogram": lambda: plots.histogram([3, 3, 4], "size", "lists"),
    "ranked": lambda: plots.ranked([3, 9, 4], "list", "size"),
    "blocks": lambda: plots.blocks([0.9, 0.8], "labels"),
    "bars": lambda: plots.bars(["a$b$", "c"], [1.0, 2.0], "MiB"),
}


def point(head: str, rows: int, us: float = 3.0) -> dict[str, object]:
    return {
        "head": {"name": head},
        "rows": rows,
        "us_per_row": us / rows,
        "precision_at": {"1": 0.99, "5": 0.9},
    }


def texts(svg: str) -> list[str]:
    return [text for each in ElementTree.fromstring(svg).iter() if (text := each.text or "")]


@pytest.mark.parametrize("name", PLOTS)
def test_a_plot_is_one_svg_in_the_colour_of_the_page(name: str) -> None:
    svg = PLOTS[name]()
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert "currentColor" in svg
    assert plots.INK not in svg
    assert svg == PLOTS[name]()


def test_names_are_no_formulas() -> None:
    assert "a$b$ P@1" in texts(PLOTS["speed_precision"]())
    assert "a$b$" in texts(PLOTS["bars"]())


def test_a_head_has_one_entry_in_the_legend_for_each_k() -> None:
    svg = plots.speed_precision([point("exact", 1), point("lsh", 1), point("lsh", 64)])
    named = [text for text in texts(svg) if text in ("exact", "lsh P@1", "lsh P@5")]
    assert sorted(named) == ["exact", "lsh P@1", "lsh P@5"]
