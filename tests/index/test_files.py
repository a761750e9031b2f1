import hashlib
from pathlib import Path

import pytest

from logitsieve.index.files import link_or_copy, write_file


def test_a_file_is_written_once_and_described(tmp_path: Path) -> None:
    file = tmp_path / "part"
    assert write_file(file, [b"ab", b"c"]) == (3, hashlib.sha256(b"abc").hexdigest())
    assert file.read_bytes() == b"abc"
    with pytest.raises(FileExistsError):
        write_file(file, [b""])
    with pytest.raises(FileNotFoundError):
        link_or_copy(tmp_path / "none", tmp_path / "other")


@pytest.mark.parametrize("symbolic", [False, True])
def test_a_link_shares_the_file(tmp_path: Path, symbolic: bool) -> None:
    real = source = tmp_path / "real"
    real.write_bytes(b"abc")
    if symbolic:
        source = tmp_path / "source"
        source.symlink_to("real")
    assert link_or_copy(source, tmp_path / "other") is None
    assert (tmp_path / "other").lstat().st_ino == real.stat().st_ino
