"""Nobody writes the files of a loaded version unnoticed."""

import os
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from logitsieve.api.errors import IndexUnreadable, ModelNotFound
from logitsieve.server.models.served import Watched
from tests.server.materials import mapped
from tests.server.models.test_repository import loaded
from tests.server.running import write_model

WRITING = os.O_WRONLY | os.O_NONBLOCK  # refused, not kept waiting


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "part.safetensors"
    path.write_bytes(bytes(100))
    return path


def test_a_writer_waits_until_the_version_is_closed(file: Path) -> None:
    with closing(Watched(file.parent)) as watched, closing(Watched(file.parent)) as other:
        watched.check()
        assert file.read_bytes() == bytes(100)
        with pytest.raises(BlockingIOError):
            os.open(file, WRITING)
        for each in (watched, other):
            with pytest.raises(IndexUnreadable, match=r"part\.safetensors.*somebody writes"):
                each.check()
    os.close(os.open(file, WRITING))
    watched.check()


def cut(path: Path) -> None:
    os.truncate(path, 10)


def write_in_place(path: Path) -> None:
    with path.open("r+b") as stream:
        stream.write(b"x")


@pytest.mark.parametrize("write", [cut, write_in_place])
def test_without_a_lease_it_is_seen_afterwards(file: Path, write: Callable[[Path], None]) -> None:
    os.utime(file, ns=(0, 0))
    with file.open("ab"), closing(Watched(file.parent)) as watched:  # no lease while it is open
        watched.check()
        write(file)
        with pytest.raises(IndexUnreadable, match="written while it was loaded"):
            watched.check()


def test_a_file_that_is_replaced_or_removed_stays_as_it_was_mapped(file: Path) -> None:
    with file.open("ab"), closing(Watched(file.parent)) as watched:
        new = file.with_name("new")
        new.write_bytes(b"x")
        new.rename(file)
        watched.check()
        file.unlink()
        watched.check()


def test_a_version_that_is_written_fails_alone_and_is_unmapped(tmp_path: Path) -> None:
    for version in (1, 2):
        write_model(tmp_path, "demo", version)
    repository = loaded(tmp_path)
    repository.fail_written()
    served = repository.routes.served("demo@1")
    file = tmp_path / "demo" / "1" / "softmax.safetensors"
    with pytest.raises(BlockingIOError):
        os.open(file, WRITING)
    with served.leases:
        repository.fail_written()
        with pytest.raises(ModelNotFound, match=r"softmax\.safetensors"):
            repository.routes.served("demo@1")
        with pytest.raises(BlockingIOError):  # a request is being computed
            os.open(file, WRITING)
    del served
    assert not mapped(tmp_path / "demo" / "1")
    cut(file)
    repository.fail_written()
    assert repository.routes.served("demo@2").decoder.version == "2"
