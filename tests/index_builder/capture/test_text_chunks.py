import gzip
from pathlib import Path

import pytest

from logitsieve.index_builder.capture.stream_sample import (
    CHARACTERS,
    CountedText,
    text_chunks,
    token_windows,
)
from tests.refusals import refused

TEXT = "".join(f"line {number} é\n" for number in range(20_000)) + "no end"


@pytest.mark.parametrize("suffix", [".txt", ".gz"])
def test_the_pieces_are_the_text_and_end_with_lines(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"text{suffix}"
    raw = TEXT.encode()
    path.write_bytes(gzip.compress(raw) if suffix == ".gz" else raw)
    pieces = list(text_chunks(path))
    assert "".join(pieces) == TEXT
    assert len(pieces) > 2
    assert all(piece.endswith("\n") for piece in pieces[:-1])
    assert max(map(len, pieces)) < CHARACTERS + 100


def test_tokens_of_the_whole_text_are_estimated(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text(TEXT)
    counted, seen = CountedText(tmp_path / "text.txt", lambda text: [1] * (len(text) // 2)), []
    assert counted.tokens == 0
    for piece in text_chunks(tmp_path / "text.txt"):
        counted.tokenize(piece)
        seen.append(counted.tokens)
    assert len(seen) > 2
    assert seen == pytest.approx([len(TEXT) / 2] * len(seen), rel=1e-3)


@pytest.mark.parametrize(
    ("name", "raw", "reason"),
    [
        ("a.txt", b"good\n\xff\xfe", "UTF-8"),
        ("b.gz", b"\x1f\x8bno gzip", "that gzipped"),
        ("c.gz", gzip.compress(b"cut short" * 99, mtime=0)[:-12], "that gzipped"),
        ("none.txt", None, ""),
    ],
)
def test_other_files_are_named(tmp_path: Path, name: str, raw: bytes | None, reason: str) -> None:
    if raw is not None:
        (tmp_path / name).write_bytes(raw)
    with refused("text", f"{name}.*{reason}"):
        list(text_chunks(tmp_path / name))


@pytest.mark.parametrize("window", [2, 7, 1000])
def test_windows_hold_every_token_once(tmp_path: Path, window: int) -> None:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    windows = list(token_windows(path, lambda chunk: list(map(ord, chunk)), [1], window))
    assert {len(each) for each in windows[:-1]} == {window}
    assert {each[0] for each in windows} == {1}
    assert "".join(chr(one) for each in windows for one in each[1:]) == TEXT
