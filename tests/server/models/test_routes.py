import errno
import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from logitsieve.api.errors import IndexUnreadable
from logitsieve.server.models.routes import ALIASES_FILE, locked, read_aliases, write_alias
from tests.server.running import WAIT_S


def test_one_alias_changes_and_the_others_stay(tmp_path: Path) -> None:
    (tmp_path / ".tmp-aliases").write_text('{"stable')  # of one that died
    write_alias(tmp_path, "stable", 1)
    write_alias(tmp_path, "canary", 2)
    write_alias(tmp_path, "stable", 3)
    assert read_aliases(tmp_path) == {"canary": 2, "stable": 3}
    write_alias(tmp_path, "canary", None)
    assert (tmp_path / ALIASES_FILE).read_bytes() == b'{"stable":3}\n'
    assert [path.name for path in tmp_path.iterdir()] == [ALIASES_FILE]


@pytest.mark.parametrize("written", [0, 5])
def test_a_full_disk_leaves_the_old_file(tmp_path: Path, written: int) -> None:
    def full(file: Path, content: Iterable[bytes]) -> None:
        file.write_bytes(b"".join(content)[:written])
        raise OSError(errno.ENOSPC, "No space left on device")

    write_alias(tmp_path, "stable", 1)
    with pytest.raises(OSError, match="No space"):
        write_alias(tmp_path, "stable", 2, full)
    assert read_aliases(tmp_path) == {"stable": 1}
    assert [path.name for path in tmp_path.iterdir()] == [ALIASES_FILE]


@pytest.mark.parametrize(
    "text", ["", "[]", '{"stable": "1"}', '{"stable": true}', '{"UP": 1}', "[" * 100_000]
)
def test_a_spoiled_file_is_refused_and_kept(tmp_path: Path, text: str) -> None:
    (tmp_path / ALIASES_FILE).write_text(text)
    with pytest.raises(IndexUnreadable, match=r"aliases\.json"):
        read_aliases(tmp_path)
    with pytest.raises(IndexUnreadable):
        write_alias(tmp_path, "stable", 1)
    assert (tmp_path / ALIASES_FILE).read_text() == text


def test_those_who_write_at_one_time_lose_nothing(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        done = [pool.submit(write_alias, tmp_path, f"a{n}", n) for n in range(1, 41)]
        for one in done:
            one.result(WAIT_S)
    assert json.loads((tmp_path / ALIASES_FILE).read_text()) == {f"a{n}": n for n in range(1, 41)}


def test_a_writer_waits_for_another_but_not_for_ever(tmp_path: Path) -> None:
    refused = pytest.raises(TimeoutError, match="another process has locked")
    with ThreadPoolExecutor(1) as pool:
        with locked(tmp_path):
            with refused, locked(tmp_path, within_s=0.0):
                pass
            done = pool.submit(write_alias, tmp_path, "stable", 1)
            assert not (tmp_path / ALIASES_FILE).exists()
        done.result(WAIT_S)
    assert read_aliases(tmp_path) == {"stable": 1}
    with locked(tmp_path, within_s=0.0):
        pass
