"""What `python -m benchmarks.fuzz` kept: nothing raises, and every code is a documented one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.fuzz.corpora import FOLDER, inputs
from benchmarks.fuzz.targets import NAMES, Target, targets


@pytest.fixture(scope="module")
def known(kernel_cache: Path) -> Iterator[dict[str, Target]]:
    with targets(kernel_cache) as found:
        yield found


def test_there_is_a_corpus_for_every_target_and_no_other() -> None:
    assert {folder.name for folder in FOLDER.iterdir()} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_corpus(known: dict[str, Target], name: str) -> None:
    files = inputs(FOLDER / name)
    assert files
    for file in files:
        assert known[name](file.read_bytes()), file
