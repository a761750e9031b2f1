import errno
import re
from pathlib import Path

import pytest

from logitsieve.api.errors import MissingExtra
from logitsieve.utils.environment import is_loopback, name_in_errors, reason_of, require


def test_a_missing_extra_says_what_to_install() -> None:
    require("server", "json")
    with pytest.raises(MissingExtra, match=re.escape("-e '.[server]'")):
        require("server", "json", "no_such_module")


@pytest.mark.parametrize(
    ("host", "local"),
    [
        *[(host, True) for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost")],
        *[(host, False) for host in ("0.0.0.0", "::", "10.0.0.1", "localhost.example", "")],
    ],
)
def test_loopback_is_known_without_a_resolver(host: str, local: bool) -> None:
    assert is_loopback(host) is local


@pytest.mark.parametrize(("before", "after"), [(None, "out"), ("other", "other")])
def test_an_error_names_the_file_unless_it_names_one(before: str | None, after: str) -> None:
    with pytest.raises(OSError, match="No space") as caught, name_in_errors(Path("out")):
        raise OSError(errno.ENOSPC, "No space left on device", before)
    assert caught.value.filename == after


def test_a_files_error_is_told_without_its_number_and_path(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as error:
        (tmp_path / "none").read_bytes()
    assert reason_of(error.value) == "No such file or directory"
    assert reason_of(ValueError("bad")) == "bad"
