from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from logitsieve.api.errors import IndexUnreadable
from logitsieve.index.contents import read_contents
from logitsieve.index.verify import REMEMBERED, VerifiedMemory, fingerprint, verify_contents
from tests.index.samples import forge, replace_file, spoil_tensor, tiny_softmax, write_tiny

FILES = ["manifest.json", "softmax.safetensors", "screen.safetensors", "vocabulary.txt"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny(tmp_path_factory.mktemp("whole") / "demo" / "1")


def copy_with(whole: Path, name: str, data: bytes) -> Path:
    copy = whole.parent / "2"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(whole, copy)
    replace_file(copy / name, data)
    return copy


@settings(deadline=None)
@given(name=st.sampled_from(FILES), data=st.data())
def test_every_flipped_byte_is_refused(whole: Path, name: str, data: st.DataObject) -> None:
    content = bytearray((whole / name).read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    index = copy_with(whole, name, bytes(content))
    with pytest.raises(IndexUnreadable) as refused:
        verify_contents(read_contents(index))
    assert refused.value.file.parent == index


@settings(deadline=None)
@given(name=st.sampled_from(FILES), data=st.data())
def test_every_truncation_is_refused(whole: Path, name: str, data: st.DataObject) -> None:
    content = (whole / name).read_bytes()
    length = data.draw(st.integers(0, len(content) - 1))
    index = copy_with(whole, name, content[:length])
    with pytest.raises(IndexUnreadable) as refused:
        verify_contents(read_contents(index))
    assert refused.value.file == index / name


def cell(*place: int, to: float) -> Callable[[np.ndarray], Any]:
    return lambda array: array.__setitem__(place, to)


SPOILED: dict[str, tuple[str, str, Callable[[np.ndarray], Any], str]] = {
    "NaN in W": ("softmax", "weight", cell(1, 1, to=np.nan), "weight is not finite in row 1"),
    "-inf in b": ("softmax", "bias", cell(2, to=-np.inf), "bias is not finite in row 2"),
    "another W": ("softmax", "weight", cell(1, 1, to=5), "holds the matrix"),
    "an id twice": ("screen", "ids", cell(1, to=6), "list 0 holds an id twice"),
    "inf centroid": ("screen", "centroids", cell(0, 0, to=np.inf), "centroids is not finite"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_numbers_are_checked_although_every_digest_fits(tiny: Path, name: str) -> None:
    part, tensor, change, reason = SPOILED[name]
    spoil_tensor(tiny, part, tensor, change)
    with pytest.raises(IndexUnreadable) as refused:
        verify_contents(read_contents(tiny))
    assert refused.value.file == tiny / f"{part}.safetensors"
    assert reason in refused.value.reason


def test_a_matrix_named_wrongly_everywhere_is_refused(tiny: Path) -> None:
    """Parts and manifest agree on an identity that the matrix does not have."""
    real = read_contents(tiny).manifest.softmax_sha256
    for part in ("softmax", "screen"):
        file = tiny / f"{part}.safetensors"
        replace_file(file, file.read_bytes().replace(real.encode(), b"0" * 64))
    forge(tiny, softmax_sha256="0" * 64)
    with pytest.raises(IndexUnreadable, match="holds the matrix"):
        verify_contents(read_contents(tiny))


def test_progress_counts_every_byte_once(tiny: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    verify_contents(read_contents(tiny), lambda *call: calls.append(call))
    done = [call[1] for call in calls]
    assert done == sorted(done)
    assert {call[0] for call in calls} == {"verify"}
    assert {call[2] for call in calls} == {done[-1]}


def test_what_progress_raises_comes_through(tiny: Path) -> None:
    def stop(stage: str, done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify_contents(read_contents(tiny), stop)


def test_a_fingerprint_changes_with_the_file_not_with_the_reading(tiny: Path) -> None:
    file = tiny / "softmax.safetensors"
    before = fingerprint(read_contents(tiny))
    assert fingerprint(read_contents(tiny)) == before

    os.utime(file, ns=(0, file.stat().st_mtime_ns + 1))
    touched = fingerprint(read_contents(tiny))
    replace_file(tiny / "copy", file.read_bytes())
    shutil.copystat(file, tiny / "copy")
    (tiny / "copy").replace(file)
    replaced = fingerprint(read_contents(tiny))
    assert len({before, touched, replaced}) == 3


def test_a_write_that_sets_the_time_back_changes_the_fingerprint(tiny: Path) -> None:
    file = tiny / "softmax.safetensors"
    before, status = fingerprint(read_contents(tiny)), file.stat()
    data = file.read_bytes()
    while file.stat().st_ctime_ns == status.st_ctime_ns:  # as coarse as the system's clock
        file.write_bytes(data[:-1] + b"\x01")
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert file.stat().st_mtime_ns == status.st_mtime_ns
    assert fingerprint(read_contents(tiny)) != before


def test_what_is_mapped_is_hashed_not_what_bears_its_name_now(tiny: Path) -> None:
    file = tiny / "screen.safetensors"
    whole = file.read_bytes()
    replace_file(file, whole.replace(b"\x00\x00\x80\x3f", b"\x00\x00\x80\x3e"))
    damaged = read_contents(tiny)
    replace_file(file, whole)
    with pytest.raises(IndexUnreadable, match=r"screen\.safetensors: damaged"):
        verify_contents(damaged)
    verify_contents(read_contents(tiny))


def test_memory_is_kept_in_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "logitsieve"
    assert "a" not in VerifiedMemory(folder)
    VerifiedMemory(folder).add("a")
    VerifiedMemory(folder).add("b")
    assert "a" in VerifiedMemory(folder)
    assert "b" in VerifiedMemory(folder)
    assert [file.name for file in folder.iterdir()] == ["verified.json"]


def test_memory_forgets_the_oldest(tmp_path: Path) -> None:
    memory = VerifiedMemory(tmp_path)
    for number in range(REMEMBERED + 1):
        memory.add(str(number))
    assert "0" not in memory
    assert "1" in memory
    assert len(json.loads((tmp_path / "verified.json").read_bytes())) == REMEMBERED


@pytest.mark.parametrize("text", ["", "{", "{}", "null", "[1, [2]]", "\udcff", "[" * 200_000])
def test_a_damaged_memory_is_an_empty_one(tmp_path: Path, text: str) -> None:
    (tmp_path / "verified.json").write_bytes(text.encode(errors="surrogateescape"))
    memory = VerifiedMemory(tmp_path)
    assert "a" not in memory
    memory.add("a")
    assert "a" in memory


def test_a_memory_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    memory = VerifiedMemory(tmp_path / "file" / "cache")
    memory.add("a")
    assert "a" not in memory


def test_another_matrix_gives_another_digest(tiny: Path) -> None:
    other = write_tiny(tiny.parent / "2", softmax=tiny_softmax(1))
    assert read_contents(other).manifest.digest != read_contents(tiny).manifest.digest
