"""Files that no other user could have written."""

import os
from pathlib import Path

import pytest

from logitsieve.utils.own_files import make_own, read_own, write_own


@pytest.fixture(autouse=True)
def umask() -> object:
    """Others may write what is made without a mode."""
    before = os.umask(0)
    yield
    os.umask(before)


def test_what_is_written_is_ours_under_any_umask(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    write_own(folder, "c/d/file", b"content")
    assert read_own(folder, "c/d/file") == b"content"
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "a").rglob("*")} == {0o700, 0o600}
    write_own(folder, "c/d/file", b"other")
    assert read_own(folder, "c/d/file") == b"other"
    assert [path.name for path in (folder / "c" / "d").iterdir()] == ["file"]
    make_own(folder)


@pytest.mark.parametrize("name", ["", "c", "c/file"])
def test_each_folder_and_the_file_must_be_ours(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "b"
    write_own(folder, "c/file", b"content")
    for mode in (0o720, 0o702, 0o777):
        (folder / name).chmod(mode)
        with pytest.raises(PermissionError, match=rf"mode 0{mode:o}.*{folder / name}'"):
            read_own(folder, "c/file")
        if name != "c/file":
            with pytest.raises(PermissionError, match=r"chmod go-w"):
                write_own(folder, "c/file", b"content")
    (folder / name).chmod(0o755)
    assert read_own(folder, "c/file") == b"content"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("name", ["", "c", "c/file"])
def test_another_owner_is_refused(tmp_path: Path, name: str) -> None:
    write_own(tmp_path / "b", "c/file", b"content")
    os.chown(tmp_path / "b" / name, 12345, -1)
    with pytest.raises(PermissionError, match=r"owner 12345, mode 0[67]00, allowed: owner 0,"):
        read_own(tmp_path / "b", "c/file")


def test_links_are_judged_by_what_they_name(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "b", tmp_path / "elsewhere"
    make_own(folder)
    write_own(elsewhere, "file", b"content")
    (folder / "c").symlink_to(elsewhere)
    assert read_own(folder, "c/file") == b"content"
    elsewhere.chmod(0o777)
    with pytest.raises(PermissionError, match=r"mode 0777"):
        read_own(folder, "c/file")


def test_pipes_do_not_block_and_absent_files_are_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    os.mkfifo(tmp_path / "pipe", 0o600)
    assert read_own(tmp_path, "pipe") == b""
    with pytest.raises(FileNotFoundError, match=r"absent"):
        read_own(tmp_path, "absent/file")
