from pathlib import Path

import pytest

from benchmarks import raw

HEALTHY = {"L1": 43.0, "L2": 60.0, "L3": 11.0, "DRAM": 7.0}


def test_results_of_a_strangled_machine_are_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(raw, "RESULTS", tmp_path / "results")
    healthy = {"machine": {"read_GBps": HEALTHY}}
    slow = {"model": {"machine": {"read_GBps": HEALTHY | {"L2": 2.0}}}}
    kept, elsewhere = raw.RESULTS / "papers" / "table.json.gz", tmp_path / "table.json.gz"
    raw.write(kept, healthy)
    with pytest.raises(SystemExit, match=r"reads L2 at 2\.0 GB/s \(at least 20\)"):
        raw.write(kept, healthy | slow)
    assert raw.read(kept) == healthy
    raw.write(elsewhere, slow)
    assert raw.read(elsewhere) == slow
