from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import IndexUnreadable, InvalidRequest
from logitsieve.index import Index
from logitsieve.index_builder.report import write_report

VOCABULARY, DIM = 20, 2
VOID = {"meta", "path", "use", "line", "rect"}
Make = Callable[..., Index]


class Page(HTMLParser):
    """Checks that tags nest; keeps the text, the tags and the attributes."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.text = ""
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self._open: list[str] = []
        self.feed(markup)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def point(
    head: str, rows: int, us: float, precision: float, uneven: bool = False
) -> dict[str, Any]:
    summary = {"mean": precision, "low": precision - 0.01, "worst": 0.9, "best": 1.0}
    return {
        "head": {"name": head, "knobs": {"probes": 1.0}},
        "rows": rows,
        "us_per_row": us,
        "precision_at": {"1": precision, "5": precision},
        "precision": {"1": summary, "5": summary},
        "uneven": uneven,
        "candidates": 7.0,
        "mass_kept": 0.9,
    }


def calibration(**changes: Any) -> dict[str, Any]:
    return {
        "machine": {"cpu": "a <fast> one", "date": "2026-01-01"},
        "heldout_rows": 100,
        "points": [
            point("exact", 1, 100.0, 1.0),
            point("screen", 1, 4.0, 0.99),
            point("screen", 64, 2.0, 0.99),
        ],
        "compared": [point("plain k-means", 1, 5.0, 0.98)],
        **changes,
    }


def contexts(rows: int = 400) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((rows, DIM)).astype(np.float32)


def words() -> list[str]:
    return [f"<script>w{number}</script>" for number in range(VOCABULARY)]


def test_the_whole_page(make: Make, tmp_path: Path) -> None:
    index = make(vocabulary=words(), calibration=calibration())
    write_report(index, tmp_path / "new" / "report.html", contexts())
    markup = (tmp_path / "new" / "report.html").read_text()
    page = Page(markup)
    for text in (
        "circle 3",
        index.digest,
        "type of the matrixF32",
        "Speed and precision",
        "not in the index: plain k-means",
        "a <fast> one",
        "softmax.safetensors",
        "2 clusters; a list holds",
        "on average",
        "<script>w0</script>",
    ):
        assert text in page.text
    assert "script" not in page.tags
    assert page.tags.count("svg") == 7


def test_the_page_asks_the_network_for_nothing(make: Make, tmp_path: Path) -> None:
    write_report(make(calibration=calibration()), tmp_path / "report.html", contexts())
    markup = (tmp_path / "report.html").read_text()
    page = Page(markup)
    assert not {"script", "link", "img", "iframe", "image"} & set(page.tags)
    links = [value for name, value in page.attributes if name in {"href", "src", "xlink:href"}]
    assert all(value is not None and value.startswith("#") for value in links)
    assert not re.search(r"url\(\s*['\"]?\s*(?!#)", markup)
    assert "@import" not in markup


def test_equal_indexes_give_equal_pages(make: Make, tmp_path: Path) -> None:
    index = make(vocabulary=words(), calibration=calibration())
    write_report(index, tmp_path / "a.html", contexts())
    write_report(index, tmp_path / "b.html", contexts())
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_coverage_is_the_share_of_labels_in_the_lists(make: Make, tmp_path: Path) -> None:
    hidden = contexts()
    index = make()
    write_report(index, tmp_path / "report.html", hidden)
    screen, exact = index.head("screen"), index.head("exact")
    found, truth = screen.candidates(hidden, 5), exact.topk(hidden, 5)
    shares = [
        np.isin(truth.ids[row], found.ids[found.offsets[row] : found.offsets[row + 1]]).mean()
        for row in range(len(hidden))
    ]
    assert f"{np.mean(shares):.4f} on average" in (tmp_path / "report.html").read_text()


def test_uneven_coverage_is_warned_of(make: Make, tmp_path: Path) -> None:
    angles = np.concatenate([np.full(360, 0.1), np.full(40, np.pi / 2 - 0.05)])
    hidden = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    write_report(make(), tmp_path / "report.html", hidden)
    assert "That varies" in Page((tmp_path / "report.html").read_text()).text


def test_uneven_precision_is_warned_of(make: Make, tmp_path: Path) -> None:
    points = [point("exact", 1, 100.0, 1.0), point("screen", 1, 4.0, 0.99, uneven=True)]
    write_report(make(calibration=calibration(points=points)), tmp_path / "report.html")
    assert "Precision of screen varies" in Page((tmp_path / "report.html").read_text()).text


def test_the_distinctive_words_come_first(make: Make, tmp_path: Path) -> None:
    plain = [f"w{number}" for number in range(VOCABULARY)]
    write_report(make(vocabulary=plain), tmp_path / "report.html", contexts())
    text = Page((tmp_path / "report.html").read_text()).text
    [first] = re.findall(r"w\d+(?= · )", text)[:1]
    shared = {"w4", "w5", "w6", "w14", "w15", "w16"}  # about the vertical axis: in both lists
    assert first not in shared


def test_an_index_without_screen_calibration_and_vocabulary(make: Make, tmp_path: Path) -> None:
    write_report(make(screen=False), tmp_path / "report.html", contexts())
    page = Page((tmp_path / "report.html").read_text())
    assert page.tags.count("svg") == 1
    assert "Clusters" not in page.text


@pytest.mark.parametrize(
    "broken",
    [
        {"points": 3},
        {"points": [{}]},
        {"points": [point("screen", 1, 4.0, 0.99)]},
        {"points": [point("exact", 64, 4.0, 1.0)]},
        {"points": [{**point("exact", 1, 4.0, 1.0), "precision": {"1": {"mean": "x", "low": 1}}}]},
        {"machine": []},
    ],
)
def test_a_calibration_of_another_shape_is_refused(
    make: Make, tmp_path: Path, broken: dict[str, Any]
) -> None:
    index = make(calibration=calibration(**broken))
    with pytest.raises(IndexUnreadable, match=r"calibration\.json"):
        write_report(index, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_a_head_named_like_a_formula_is_plain_text(make: Make, tmp_path: Path) -> None:
    odd = point(r"$\frac$", 1, 5.0, 0.98)
    write_report(make(calibration=calibration(compared=[odd])), tmp_path / "report.html")
    assert r"$\frac$ P@1" in Page((tmp_path / "report.html").read_text()).text


def test_wrong_contexts_name_their_field(make: Make, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"^contexts: got D = 3, allowed: D = 2"):
        write_report(make(), tmp_path / "report.html", np.ones((4, 3), np.float32))


def test_what_the_cascade_is_at_the_stored_knobs(make: Make, tmp_path: Path) -> None:
    write_report(make(escalate=0.5), tmp_path / "report.html", contexts())
    text = Page((tmp_path / "report.html").read_text()).text
    share = re.search(r"escalate = 0\.5 the screen answers ([0-9.]+)%", text)
    assert share is not None
    assert 60 < float(share[1]) < 73  # |cos| of two in three angles is over a half
