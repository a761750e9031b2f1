import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from logitsieve.index.files import link_or_copy, new_folder, write_file


def test_a_file_is_written_once_and_described(tmp_path: Path) -> None:
    file = tmp_path / "part"
    assert write_file(file, [b"ab", b"c"]) == (3, hashlib.sha256(b"abc").hexdigest())
    assert file.read_bytes() == b"abc"
    with pytest.raises(FileExistsError):
        write_file(file, [b""])
    with pytest.raises(FileNotFoundError):
        link_or_copy(tmp_path / "none", tmp_path / "other")


def test_a_folder_gets_its_name_at_the_end(tmp_path: Path) -> None:
    with pytest.raises(KeyError), new_folder(tmp_path / "1"):
        raise KeyError
    assert not list(tmp_path.iterdir())
    out = tmp_path / "deep" / "1"
    with new_folder(out) as folder:
        (folder / "file").touch()
        assert not out.exists()
    assert [path.name for path in out.iterdir()] == ["file"]
    assert list(out.parent.iterdir()) == [out]


@pytest.mark.parametrize("symbolic", [False, True])
def test_a_link_shares_the_file(tmp_path: Path, symbolic: bool) -> None:
    real, source = tmp_path / "real", tmp_path / "source"
    real.write_bytes(b"abc")
    if symbolic:
        source.symlink_to("real")
    else:
        source = real
    assert link_or_copy(source, tmp_path / "other") is None
    assert (tmp_path / "other").lstat().st_ino == real.stat().st_ino


@pytest.mark.parametrize("number", [errno.EXDEV, errno.EPERM, errno.EMLINK])
def test_where_no_link_can_be_it_is_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*arguments: Any, **options: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "one").write_bytes(b"abc")
    assert link_or_copy(tmp_path / "one", tmp_path / "two") == hashlib.sha256(b"abc").hexdigest()
    assert (tmp_path / "two").read_bytes() == b"abc"
    assert (tmp_path / "two").stat().st_ino != (tmp_path / "one").stat().st_ino
