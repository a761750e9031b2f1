from __future__ import annotations

from pathlib import Path

import pytest

from logitsieve.decoding import machine
from logitsieve.decoding.machine import (
    cache_sizes,
    cpu_features,
    data_caches,
    differences,
    machine_facts,
)
from logitsieve.evaluation import cpu_name

HERE = {"cpu": "EPYC", "features": "avx2", "caches": "L1 32K", "threads": "1"}


def test_the_facts_of_this_machine_are_text_that_a_calibration_holds() -> None:
    facts = machine_facts(4)
    assert facts["cpu"] == cpu_name()
    assert facts["threads"] == "4"
    assert all(0 < len(fact) <= 200 for fact in facts.values())
    assert differences(facts, machine_facts(4)) == ""


@pytest.mark.parametrize(
    ("measured", "said"),
    [
        (HERE, ""),
        ({**HERE, "date": "any", "numba": "1"}, ""),
        ({**HERE, "cpu": "Z80", "features": ""}, "Z80"),
        (
            {**HERE, "features": "avx2 avx512vnni"},
            "EPYC (features: avx2 avx512vnni, here avx2)",
        ),
        (
            {**HERE, "caches": "L1 48K", "threads": "8"},
            "EPYC (caches: L1 48K, here L1 32K; threads: 8, here 1)",
        ),
        (
            {"cpu": "EPYC", "threads": "1"},
            "EPYC (features: not stored, here avx2; caches: not stored, here L1 32K)",
        ),
    ],
)
def test_machines_differ_by_more_than_their_names(measured: dict[str, str], said: str) -> None:
    assert differences(measured, HERE) == said


def test_features_are_those_that_numba_compiles_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cpu_has", {"avx2", "avxvnni"}.__contains__)
    monkeypatch.setenv("NUMBA_CPU_NAME", "alderlake")
    assert cpu_features.__wrapped__() == "alderlake avx2 avxvnni"
    monkeypatch.setattr(machine, "cpu_has", lambda feature: False)
    monkeypatch.delenv("NUMBA_CPU_NAME")
    assert cpu_features.__wrapped__() == "none"


def test_caches_are_those_of_data(tmp_path: Path) -> None:
    caches = [("1", "Data", "48K"), ("1", "Instruction", "32K"), ("2", "Unified", "1024K")]
    for number, facts in enumerate(caches):
        folder = tmp_path / f"index{number}"
        folder.mkdir()
        for name, text in zip(("level", "type", "size"), facts, strict=True):
            (folder / name).write_text(text + "\n")
    (tmp_path / "index9").mkdir()  # a kernel that says nothing of it
    assert data_caches(tmp_path) == {"L1": "48K", "L2": "1024K"}
    assert cache_sizes(tmp_path) == "L1 48K, L2 1024K"
    assert cache_sizes(tmp_path / "none") == "unknown"
