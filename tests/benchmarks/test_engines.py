from pathlib import Path

import pytest

from benchmarks.llamacpp import engines as measuring
from benchmarks.llamacpp.contenders import BODY, PEER
from benchmarks.plots import draw_engines
from benchmarks.raw import GRADED
from benchmarks.tables import engines
from benchmarks.tables.figures import UNMEASURED
from logitsieve.llamacpp.hosts import HOSTS
from tests.llamacpp.small_model import Make

pytest.importorskip("ik_llama_cpp", reason="ik_llama_cpp is not installed: pip install '.[ik]'")
pytestmark = pytest.mark.usefixtures("llama_wheel")

TEXTS = {kind: [(list(range(300, 330)), 4)] for kind in ("english", "german")}


def test_every_engine_is_measured_and_shown(
    make_gguf: Make, gguf_index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = {"wheel": HOSTS["llamacpp"](), "ik": HOSTS["ik"]()}
    monkeypatch.setattr(measuring, "builds", lambda: made)
    monkeypatch.setattr(measuring, "THREADS", (1,))
    found = measuring.measured(make_gguf(), gguf_index, until=0.0, texts=TEXTS)
    assert found["rounds"] == 2
    for build in made:
        for way in measuring.WAYS:
            for kind in TEXTS:
                one = found["builds"][build][way][kind]["1"]
                names = [PEER, BODY, *GRADED] if way == "greedy" else [PEER, *GRADED]
                assert list(one) == names
                assert all(each["tokens_per_s"][1] > 0 for each in one.values())
    assert engines.engines(engines.FILE) == UNMEASURED or engines.measured()
    monkeypatch.setattr(engines, "load", lambda name: {"small": found})
    monkeypatch.setattr(engines, "measured", lambda name=engines.FILE: True)
    head, _, *rows = engines.engines(engines.FILE).splitlines()
    assert head.startswith("| tokens a second | llama.cpp | ik_llama.cpp | `sketch 1e-15` in llama")
    assert [row.split(" | ")[0] for row in rows[:2]] == [
        "| small, greedy, 1 thread", "| small, top_p 0.95, 1 thread"
    ]  # fmt: skip
    assert rows[-1].count("ik-llama-cpp-python 0.1.5: AVX") == 1
    draw_engines(tmp_path / "speed.svg")
    drawn = (tmp_path / "speed.svg").read_text(encoding="utf-8")
    assert all(f"<!-- {text} -->" in drawn for text in ("small", "logitsieve, proven"))
    [share] = engines.shares().splitlines()[2:]
    assert share.startswith("| small: V = 560, D = 64 | ")


def test_the_fastest_and_its_times_over_the_best_peer() -> None:
    kinds = {
        "english": {"wheel": {PEER: 50.0, "a": 90.0}, "ik": {PEER: 80.0, "a": 160.0}},
        "chat": {"wheel": {PEER: 60.0, "a": 90.0}, "ik": {PEER: 75.0, "a": 90.0}},
    }
    assert engines.best(kinds, PEER) == engines.best(kinds, "a") == "ik"
    assert engines.over(kinds, "ik", "a") == "1.20x to 2.00x"
    assert engines.over(kinds, "wheel", "a") == "1.12x to 1.20x"
    assert engines.over(kinds, "wheel", "none") == ""
    assert engines.own(kinds, "wheel") == "50.0 to 60.0"
