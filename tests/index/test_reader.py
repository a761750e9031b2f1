import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from logitsieve.api.errors import IndexUnreadable
from logitsieve.index import FileEntry
from logitsieve.index.reader import read_contents
from logitsieve.index.tensorfile import pieces
from logitsieve.index.verify import verify_contents
from tests.index.samples import (
    ESCAPES,
    forge,
    read_manifest,
    replace_file,
    tiny_screen,
    tiny_softmax,
    write_tiny,
)
from tests.refusals import unreadable


def refused(path: Path) -> IndexUnreadable:
    with pytest.raises(IndexUnreadable) as caught:
        read_contents(path)
    return caught.value


@pytest.mark.parametrize("path", ["demo/latest", "demo/01", "Demo/1", ".tmp-1/1"])
def test_an_index_lies_in_name_and_version(tmp_path: Path, path: str) -> None:
    assert "<name>/<version>/" in refused(tmp_path / path).reason


def test_folders_that_are_none_name_what_is_there(tmp_path: Path) -> None:
    error = refused(tmp_path / "demo" / "1")
    assert (error.file, error.reason) == (tmp_path / "demo" / "1", "no such directory")
    for version in ("10", "2", "x", "04"):
        (tmp_path / "lm" / version).mkdir(parents=True)
    with pytest.raises(IndexUnreadable, match=r"versions in this folder: 2, 10$"):
        read_contents(tmp_path / "lm")


@pytest.mark.parametrize(
    "name", ["manifest.json", "softmax.safetensors", "screen.safetensors", "vocabulary.txt"]
)
def test_a_missing_file(tiny: Path, name: str) -> None:
    (tiny / name).unlink()
    with unreadable(tiny / name, "missing"):
        read_contents(tiny)


@pytest.mark.parametrize("name", ["manifest.json", "screen.safetensors", "calibration.json"])
def test_a_pipe_or_a_folder_instead_of_a_file(tiny: Path, name: str) -> None:
    for make in (os.mkfifo, Path.mkdir):
        (tiny / name).unlink(missing_ok=True)
        make(tiny / name)
        with unreadable(tiny / name, "not a regular file"):
            read_contents(tiny)


@pytest.mark.parametrize("name", ["screen.safetensors", "softmax.safetensors"])
def test_a_part_or_a_softmax_of_another_matrix_is_refused(tiny: Path, name: str) -> None:
    other = write_tiny(tiny.parent / "2", softmax=tiny_softmax(1))
    replace_file(tiny / name, (other / name).read_bytes())
    forge(tiny)
    error = refused(tiny)
    assert error.file == tiny / name
    assert name.startswith("softmax") or "another matrix" in error.reason


def test_a_matrix_named_by_escapes_without_end_is_quoted_shortly(tiny: Path) -> None:
    metadata = {"softmax_sha256": ESCAPES}
    file = tiny / "screen.safetensors"
    replace_file(file, b"".join(map(bytes, pieces(tiny_screen(), metadata))))
    forge(tiny)
    with unreadable(file, "another matrix"):
        read_contents(tiny)


@pytest.mark.parametrize("field", ["vocab_size", "dim"])
def test_other_dimensions_in_the_manifest(tiny: Path, field: str) -> None:
    forge(tiny, **{field: 8})
    error = refused(tiny)
    assert error.file.name in ("softmax.safetensors", "screen.safetensors")
    assert "needed" in error.reason


@pytest.mark.parametrize("part", ["future", "vocabulary"])
def test_an_unknown_part_is_verified_and_otherwise_ignored(tiny: Path, part: str) -> None:
    file = tiny / f"{part}.bin"
    file.write_bytes(b"not a tensor file")
    manifest = read_manifest(tiny)
    forge(tiny, parts={**manifest.parts, part: FileEntry(file.name, 0, "0" * 64)})
    contents = read_contents(tiny)
    verify_contents(contents)
    assert contents.parts.keys() == {"softmax", "screen"}
    replace_file(file, b"Not a tensor file")
    with unreadable(file, "damaged"):
        verify_contents(read_contents(tiny))
    file.unlink()
    assert refused(tiny).file == file


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        *[("calibration.json", data, "not JSON") for data in (b"{", b"\xff", b"[" * 200_000)],
        ("calibration.json", b"[]", "not a JSON object"),
        ("vocabulary.txt", b"a\nb\nc\nd\ne\nf\n\xff\n", "not UTF-8 at byte 12"),
        ("vocabulary.txt", b"a\nb\nc\nd\ne\nf\n", "6 lines, needed: 7"),
        ("vocabulary.txt", b"a\nb\nc\nd\ne\nf\ng\nh\n", "8 lines"),
        ("vocabulary.txt", b"a\nb\nc\nd\ne\nf\ng\nh", "7 lines"),
    ],
)
def test_a_broken_text(tiny: Path, name: str, data: bytes, reason: str) -> None:
    replace_file(tiny / name, data)
    forge(tiny)
    with unreadable(tiny / name, reason):
        verify_contents(read_contents(tiny))


def test_a_huge_manifest_is_not_read(tiny: Path) -> None:
    os.truncate(tiny / "manifest.json", 1 << 40)
    assert "at most" in refused(tiny).reason


def test_a_copy_elsewhere_or_by_a_link_is_the_same_index(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "elsewhere" / "12"
    shutil.copytree(tiny, copy)
    assert read_contents(copy).manifest == read_contents(tiny).manifest
    fields = json.loads((copy / "manifest.json").read_bytes())
    assert "demo" not in json.dumps(fields)
    assert replace(read_manifest(copy), seeds={}).digest != fields["digest"]
    monkeypatch.chdir(tiny)
    assert read_contents(".").path == tiny
    link = tiny.parent / "2"
    link.symlink_to("1")
    assert read_contents("../2").path == link
