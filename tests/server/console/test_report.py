from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from logitsieve.api.errors import IndexUnreadable
from logitsieve.index import Index
from logitsieve.server.console.report import CLUSTERS, answers_of, write_report
from tests.server.running import calibration, entries

Circle = Callable[..., Index]


def contexts(rows: int = 400) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((rows, 2)).astype(np.float32)


def measured() -> dict[str, Any]:
    screen = entries("screen", (1.0, 1.0, 1.0), 0.9, probes=1.0)
    return calibration(entries("exact", (9.0, 8.0, 7.0), 1.0), screen)


def kept(file: Path) -> dict[str, Any]:
    [text] = re.findall(r'id="kept-answers">(.*?)</script>', file.read_text("utf-8"), re.DOTALL)
    answers: dict[str, Any] = json.loads(text)
    return answers


def test_it_holds_what_the_pages_ask(circle: Circle, tmp_path: Path) -> None:
    words = [f"<script>w{number}</script>" for number in range(20)]
    index = circle(vocabulary=words, calibration=measured())
    out = tmp_path / "new" / "report.html"
    write_report(index, out, contexts())
    answers = kept(out)
    assert answers == json.loads(json.dumps(answers_of(index, contexts())))
    assert answers["screen?model=circle%403"]["contexts"]["rows"] == 400
    assert answers["cascade?model=circle%403"]["rows"] == 400
    assert answers["cluster?model=circle%403&number=0&start=0"]["words"]
    text = out.read_text("utf-8")
    assert "<title>circle 3 - logitsieve</title>" in text
    assert index.digest in text
    assert "<script>w" not in text


def test_it_asks_no_host_for_anything(circle: Circle, tmp_path: Path) -> None:
    write_report(circle(calibration=measured()), tmp_path / "report.html", contexts())
    text = (tmp_path / "report.html").read_text("utf-8")
    addresses = re.findall(r'(?:src|href|action)="([^"]*)"', text)
    assert len(addresses) > 6
    assert all(re.match(r"data:[a-z/+-]+;base64,|#", address) for address in addresses)
    assert "default-src &#39;none&#39;" in text


def test_equal_indexes_give_equal_pages(circle: Circle, tmp_path: Path) -> None:
    index = circle(calibration=measured())
    for name in ("a", "b"):
        write_report(index, tmp_path / name, contexts())
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_coverage_is_the_share_of_labels_in_the_lists(circle: Circle) -> None:
    index, hidden = circle(), contexts()
    facts = answers_of(index, hidden)["screen?model=circle%403"]["contexts"]
    found, truth = index.head("screen").candidates(hidden, 5), index.head("exact").topk(hidden, 5)
    shares = [
        np.isin(truth.ids[row], found.ids[found.offsets[row] : found.offsets[row + 1]]).mean()
        for row in range(len(hidden))
    ]
    assert facts["labels_listed"] == pytest.approx(np.mean(shares))
    assert facts["blocks"] == pytest.approx(np.reshape(shares, (20, 20)).mean(axis=1))
    assert not facts["uneven"]


def test_uneven_coverage_is_told(circle: Circle) -> None:
    angles = np.concatenate([np.full(360, 0.1), np.full(40, np.pi / 2 - 0.05)])
    hidden = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    assert answers_of(circle(), hidden)["screen?model=circle%403"]["contexts"]["uneven"]


def test_an_index_of_many_clusters_keeps_the_words_of_some(demo: Any) -> None:
    answers = answers_of(demo.index, None)
    assert 1 <= sum(path.startswith("cluster?") for path in answers) <= CLUSTERS


def test_an_index_without_screen_calibration_and_vocabulary(circle: Circle, tmp_path: Path) -> None:
    write_report(circle(screen=False), tmp_path / "report.html", contexts())
    names = {path.partition("?")[0] for path in kept(tmp_path / "report.html")}
    assert names == {"overview", "points", "chosen"}


@pytest.mark.parametrize("broken", [{"points": 3}, {"points": [{}]}, {"machine": []}])
def test_a_calibration_of_another_shape_is_refused(
    circle: Circle, tmp_path: Path, broken: dict[str, Any]
) -> None:
    index = circle(calibration={**measured(), **broken})
    with pytest.raises(IndexUnreadable, match=r"calibration\.json"):
        write_report(index, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()
