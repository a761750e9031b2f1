from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Run


def test_report(run: Run, index: Path, tmp_path: Path) -> None:
    out = tmp_path / "pages" / "report.html"
    assert run("report", index, "--out", out).stdout.strip() == str(out)
    assert "<title>demo 1 - logitsieve</title>" in out.read_text()
