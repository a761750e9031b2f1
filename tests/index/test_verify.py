import json
import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import logitsieve.index.verify
from logitsieve.api.errors import IndexUnreadable
from logitsieve.heads import Softmax
from logitsieve.index import open_index, verify_index
from logitsieve.index.reader import read_contents
from logitsieve.index.sketch_rows import SAMPLED
from logitsieve.index.verify import (
    REMEMBERED,
    VerifiedMemory,
    checked_rows,
    fingerprint,
    verify_contents,
)
from tests.index.samples import forge, replace_file, rewrite, spoil_tensor, write_tiny
from tests.refusals import unreadable
from tests.synthetic import make_hidden, make_softmax, rotated, sketch_arrays, write_heads

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


@given(name=st.sampled_from(FILES), data=st.data())
def test_every_flipped_byte_is_refused(whole: Path, name: str, data: st.DataObject) -> None:
    content = bytearray((whole / name).read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    index = copy_with(whole, name, bytes(content))
    with pytest.raises(IndexUnreadable) as refused:
        verify_contents(read_contents(index))
    assert refused.value.file.parent == index


@given(name=st.sampled_from(FILES), data=st.data())
def test_every_other_length_is_refused(whole: Path, name: str, data: st.DataObject) -> None:
    content = (whole / name).read_bytes()
    size = data.draw(st.integers(0, len(content) + 9).filter(lambda size: size != len(content)))
    index = copy_with(whole, name, content.ljust(size, b"x")[:size])
    with unreadable(index / name, "" if name == "manifest.json" else "the manifest says"):
        verify_contents(read_contents(index))


@pytest.mark.parametrize(
    ("part", "tensor", "place", "value", "reason"),
    [
        ("softmax", "weight", (1, 1), np.nan, "weight is not finite in row 1"),
        ("softmax", "weight", (1, 1), 5, "holds the matrix"),
        ("screen", "ids", 1, 6, "list 0 holds an id twice"),
    ],
)
def test_numbers_are_checked_although_every_digest_fits(
    tiny: Path, part: str, tensor: str, place: Any, value: float, reason: str
) -> None:
    spoil_tensor(tiny, part, tensor, lambda array: array.__setitem__(place, value))
    with unreadable(tiny / f"{part}.safetensors", reason):
        verify_contents(read_contents(tiny))


def test_a_matrix_named_wrongly_everywhere_is_refused(tiny: Path) -> None:
    """Parts and manifest agree on an identity that the matrix does not have."""
    real = read_contents(tiny).manifest.softmax_sha256
    for part in ("softmax", "screen"):
        file = tiny / f"{part}.safetensors"
        replace_file(file, file.read_bytes().replace(real.encode(), b"0" * 64))
    forge(tiny, softmax_sha256="0" * 64)
    with pytest.raises(IndexUnreadable, match="holds the matrix"):
        verify_contents(read_contents(tiny))


def write_sketched(out: Path, softmax: Softmax, sketched: Softmax) -> Path:
    """An index of one matrix, all digests of which fit, with the sketch of another."""
    sketch = sketch_arrays(sketched, rotated(sketched, make_hidden(64)))
    rewrite(write_heads(out, softmax, "sketch"), "sketch", sketch)
    return out


def test_a_sketch_of_another_matrix_is_refused(tmp_path: Path, kernel_cache: Path) -> None:
    softmax = make_softmax(vocab_size=3000)
    weight = softmax.weight.copy()
    weight[1500:] += 1  # a matrix that changed while an index was made of it
    other = Softmax(weight, softmax.bias)
    path = write_sketched(tmp_path / "demo" / "1", softmax, other)
    with pytest.raises(IndexUnreadable, match=r"sketch\.safetensors: not the sketch of") as refused:
        verify_contents(read_contents(path))
    assert refused.value.file == path / "sketch.safetensors"
    row = int(refused.value.reason.partition("row ")[2].partition(":")[0])
    assert 1500 <= row < 1510
    for verify in (partial(open_index, kernel_cache=kernel_cache), verify_index):
        with pytest.raises(IndexUnreadable, match="not the sketch of this matrix: row 15"):
            verify(path)
    open_index(path, verify="sizes").close()


def test_all_rows_find_what_a_sample_misses(tmp_path: Path) -> None:
    softmax = make_softmax(vocab_size=20_000)
    out = tmp_path / "demo" / "1"
    checked = checked_rows(read_contents(write_sketched(out, softmax, softmax)), all_rows=False)
    assert len(checked) == SAMPLED
    wrong = int(np.setdiff1d(np.arange(20_000), checked)[12])
    data = bytearray((out / "sketch.safetensors").read_bytes())
    coarse, (group, lane) = read_contents(out).parts["sketch"]["coarse"], divmod(wrong, 16)
    place = bytes(data).index(coarse[group].tobytes()) + 4 * lane
    data[place] ^= 0x40
    replace_file(out / "sketch.safetensors", bytes(data))
    forge(out)
    contents = read_contents(out)
    if wrong in checked_rows(contents, all_rows=False):  # the digest has changed, so has the sample
        pytest.fail("another seed, please")
    stages: dict[str, tuple[int, int]] = {}
    verify_contents(contents, lambda stage, *done: stages.update({stage: done}))
    assert stages["rows"] == (SAMPLED, SAMPLED)
    with pytest.raises(IndexUnreadable, match=f"row {wrong}: coarse codes are farther off"):
        verify_index(out, all_rows=True)


def test_the_sample_is_remembered(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier version checked without it counts for nothing."""
    before = fingerprint(read_contents(tiny))
    monkeypatch.setattr(logitsieve.index.verify, "SAMPLED", SAMPLED // 2)
    assert fingerprint(read_contents(tiny)) != before


def test_progress_counts_every_byte_once_and_may_stop(tiny: Path) -> None:
    calls: list[tuple[str, int, int]] = []
    verify_contents(read_contents(tiny), lambda *call: calls.append(call))
    done = [call[1] for call in calls]
    assert done == sorted(done)
    assert {call[0] for call in calls} == {"verify"}
    assert {call[2] for call in calls} == {done[-1]}

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

    status, data = file.stat(), file.read_bytes()
    while file.stat().st_ctime_ns == status.st_ctime_ns:  # as coarse as the system's clock
        file.write_bytes(data[:-1] + b"\x01")
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert file.stat().st_mtime_ns == status.st_mtime_ns
    assert fingerprint(read_contents(tiny)) not in {before, touched, replaced}


def test_what_is_mapped_is_hashed_not_what_bears_its_name_now(tiny: Path) -> None:
    file = tiny / "screen.safetensors"
    whole = file.read_bytes()
    replace_file(file, whole.replace(b"\x00\x00\x80\x3f", b"\x00\x00\x80\x3e"))
    damaged = read_contents(tiny)
    replace_file(file, whole)
    with pytest.raises(IndexUnreadable, match=r"screen\.safetensors: damaged"):
        verify_contents(damaged)
    verify_contents(read_contents(tiny))


def test_memory_is_kept_in_the_folder_and_forgets_the_oldest(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "logitsieve"
    for name in ("a", "b"):
        assert name not in VerifiedMemory(folder)
        VerifiedMemory(folder).add(name)
    assert {name in VerifiedMemory(folder) for name in ("a", "b")} == {True}
    assert [file.name for file in folder.iterdir()] == ["verified.json"]
    memory = VerifiedMemory(tmp_path)
    for number in range(REMEMBERED + 1):
        memory.add(str(number))
    assert "0" not in memory
    assert "1" in memory
    assert len(json.loads((tmp_path / "verified.json").read_bytes())) == REMEMBERED
    (tmp_path / "file").write_bytes(b"")
    memory = VerifiedMemory(tmp_path / "file" / "cache")
    memory.add("a")
    assert "a" not in memory


def test_a_memory_that_others_could_write_is_an_empty_one(tmp_path: Path) -> None:
    """A file is then replaced, a folder is not."""
    memory = VerifiedMemory(tmp_path)
    for path, again in ((tmp_path / "verified.json", True), (tmp_path, False)):
        memory.add("a")
        assert "a" in memory
        path.chmod(0o722)
        assert "a" not in memory
        memory.add("b")
        assert ("b" in memory) == again


@pytest.mark.parametrize("text", ["", "{", "{}", "null", "[1, [2]]", "\udcff", "[" * 200_000])
def test_a_damaged_memory_is_an_empty_one(tmp_path: Path, text: str) -> None:
    (tmp_path / "verified.json").write_bytes(text.encode(errors="surrogateescape"))
    memory = VerifiedMemory(tmp_path)
    assert "a" not in memory
    memory.add("a")
    assert "a" in memory
