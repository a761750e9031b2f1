from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from logitsieve.api.errors import IndexUnreadable
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from logitsieve.server.console.report import answers_of, write_report
from tests.server.console.conftest import MEASURED
from tests.server.running import write_model


def kept(file: Path) -> dict[str, Any]:
    [text] = re.findall(r'id="kept-answers">(.*?)</script>', file.read_text("utf-8"), re.DOTALL)
    answers: dict[str, Any] = json.loads(text)
    return answers


def test_it_holds_what_the_pages_ask(demo: LocalDecoder, tmp_path: Path) -> None:
    out = tmp_path / "new" / "report.html"
    write_report(demo.index, out)
    answers = kept(out)
    assert answers == json.loads(json.dumps(answers_of(demo.index)))
    names = {path.partition("?")[0] for path in answers}
    assert names == {"overview", "points", "chosen"}
    text = out.read_text("utf-8")
    assert "<title>demo 1 - logitsieve</title>" in text
    assert demo.index.digest in text


def test_it_asks_no_host_for_anything(demo: LocalDecoder, tmp_path: Path) -> None:
    write_report(demo.index, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text("utf-8")
    addresses = re.findall(r'(?:src|href|action)="([^"]*)"', text)
    assert len(addresses) > 6
    assert all(re.match(r"data:[a-z/+-]+;base64,|#", address) for address in addresses)
    assert "default-src &#39;none&#39;" in text


def test_equal_indexes_give_equal_pages(demo: LocalDecoder, tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_report(demo.index, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.parametrize("broken", [{"points": 3}, {"points": [{}]}, {"machine": []}])
def test_a_calibration_of_another_shape_is_refused(tmp_path: Path, broken: dict[str, Any]) -> None:
    index = open_index(write_model(tmp_path, calibration={**MEASURED, **broken}))
    with pytest.raises(IndexUnreadable, match=r"calibration\.json"):
        write_report(index, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()
