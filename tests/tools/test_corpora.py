"""Replay of the corpora that `make fuzz` kept: nothing raises, and every code is documented."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.fuzz.corpora import FOLDER, read_inputs
from tools.fuzz.targets import NAMES, Target, targets


@pytest.fixture(scope="module")
def all_targets(kernel_cache: Path) -> Iterator[dict[str, Target]]:
    with targets(kernel_cache) as by_name:
        yield by_name


def test_there_is_a_corpus_for_every_target_and_no_other() -> None:
    assert {file.stem for file in FOLDER.iterdir()} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_corpus(all_targets: dict[str, Target], name: str) -> None:
    inputs = read_inputs(name)
    assert inputs
    for data in inputs:
        assert all_targets[name](data), data
