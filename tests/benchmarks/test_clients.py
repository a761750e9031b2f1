from pathlib import Path
from sys import executable
from time import monotonic

import pytest

from benchmarks.llamacpp import clients as measuring
from benchmarks.llamacpp.contenders import PEER
from benchmarks.tables import engines
from logitsieve.cli import background
from tests.llamacpp.small_model import Make

TEXTS = ["the time", "people made", "over the water"]


@pytest.mark.system
@pytest.mark.parametrize(
    "engine", ["llamacpp", pytest.param("ik", marks=pytest.mark.exhaustive)], indirect=True
)
def test_clients_get_the_texts_that_each_gets_alone(
    make_gguf: Make, gguf_index: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "CLIENTS", (1, 3))
    monkeypatch.setattr(measuring, "prompts", lambda: TEXTS)
    found = measuring.clients(make_gguf(), gguf_index, engine, until=0.0)
    for name in (PEER, measuring.OURS):
        assert list(found[name]) == ["1", "3"]
        assert (found[name]["3"]["texts"], found[name]["3"]["other"]) == (3, 0)
        assert all(one["tokens_per_s"][1] > 0 for one in found[name].values())


@pytest.mark.system
def test_a_new_index_answers(
    make_gguf: Make, gguf_index: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What makes it is replaced by a copy, since tests of the command build one."""
    copied = f"import shutil, sys; shutil.copytree({str(gguf_index)!r}, sys.argv[-1])"
    monkeypatch.setattr(background, "BUILD", (executable, "-c", copied))
    monkeypatch.setattr(background, "NICENESS", 0)  # or the copy waits for other tests
    once = measuring.first_tokens(make_gguf(), engine, monotonic())
    assert 0 < once["first_s"] < once["ready_s"]
    assert min(once["before"], once["after"]) > 0


def test_the_tables_show_every_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    own, ours = (
        {"1": {"tokens_per_s": [per_s, 1, 99], "texts": 16, "other": other}}
        for per_s, other in ((20.0, 0), (50.0, 2))
    )
    once = {"first_s": 2.2, "ready_s": 67.0, "before": 15.2, "after": 44.6}
    found = {
        "clients": {"ik": {"1": {PEER: own, measuring.OURS: ours}}},
        "first": {"ik": once, "llamacpp": once},
    }
    monkeypatch.setattr(engines, "load", lambda name: {"small": found})
    monkeypatch.setattr(engines, "measured", lambda file: True)
    [row] = engines.clients().splitlines()[2:]
    assert row == "| small, ik_llama.cpp, 1 thread | 20.0, 50.0 (2.50x) | 2 of 32 |"
    assert engines.first_tokens().splitlines()[2:] == [
        f"| small, {name} | 2.20 | 67.0 | 15.2 | 44.6 |" for name in ("ik_llama.cpp", "llama.cpp")
    ]
