import gzip
import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.index_builder.arrays import reserve, save
from logitsieve.index_builder.config import CaptureConfig
from logitsieve.utils.environment import name_in_errors, reason_of
from logitsieve.utils.options import Progress

CHUNK_ROWS = 8192
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
CHARACTERS = 1 << 16
TEXT = "UTF-8 text, or that gzipped"
LONGEST_CHUNK = 1 << 17
GZIPPED, ENCODING = b"\x1f\x8b", "utf-8-sig"


def write_sample(
    folder: Path,
    dim: int,
    config: CaptureConfig,
    blocks: Iterable[np.ndarray],
    progress: Progress,
    /,
    **facts: Any,
) -> dict[str, Any]:
    """Write a sample of the rows of `blocks` [B, D], and `capture.json`; return the latter.

    InvalidRequest names `batches` if there are no rows, or one is not finite.
    """
    sample = SpreadSample(folder / "rows.tmp", dim, config.max_rows, config.dtype, config.seed)
    for rows_BD in blocks:
        sample.add(rows_BD)
        progress("capture", sample.seen, 0)
    rows = sample.write_shards(folder, config.shard_rows)
    summary = {"rows": rows, "rows_seen": sample.seen, **facts, **asdict(config)}
    written = folder / "capture.json"
    with name_in_errors(written):
        written.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    return summary


class SpreadSample:
    """Samples at most `max_rows` rows, in order, by one row from each of equal cells.

    The file `path` holds up to twice as many. When it is full, each two cells become one.
    """

    def __init__(self, path: Path, dim: int, max_rows: int, dtype: str, seed: int) -> None:
        self._path, self._max_rows, self._seed = path, max_rows, seed
        self.seen = self._kept = 0
        self._reserved = 0
        self._cell = 1
        with name_in_errors(path):
            self._file = np.lib.format.open_memmap(path, "w+", dtype, (2 * max_rows, dim))

    def add(self, rows_BD: np.ndarray) -> None:
        with np.errstate(over="ignore"):
            rows_BD = rows_BD.astype(self._file.dtype, copy=False)
        if not np.isfinite(rows_BD).all():
            raise InvalidRequest(
                "batches",
                f"a context that is not finite as {rows_BD.dtype}",
                "finite values (float32 holds larger ones than float16)",
            )
        done = 0
        while done < len(rows_BD):
            if self.seen == len(self._file) * self._cell:
                self._thin()
            space = len(self._file) * self._cell - self.seen
            part = rows_BD[done : done + space]
            self._keep(part)
            done += len(part)

    def _keep(self, rows_BD: np.ndarray) -> None:
        first, last = self.seen // self._cell, (self.seen + len(rows_BD) - 1) // self._cell
        cells = np.arange(first, last + 1, dtype=np.uint64)
        drawn = cells * np.uint64(self._cell) + self._draw(cells) % np.uint64(self._cell)
        local = drawn.astype(np.int64) - self.seen
        local = local[(local >= 0) & (local < len(rows_BD))]
        count = self._kept + len(local)
        if count > self._reserved:
            reserve(self._path, self._file, self._reserved, count)
            self._reserved = count
        self._file[self._kept : count] = rows_BD[local]
        self._kept = count
        self.seen += len(rows_BD)

    def _thin(self) -> None:
        self._kept //= 2
        self._cell *= 2
        for start in range(0, self._kept, CHUNK_ROWS):
            pairs = np.arange(start, min(start + CHUNK_ROWS, self._kept), dtype=np.uint64)
            chosen = 2 * pairs + (self._draw(pairs) >> np.uint64(63))
            self._file[start : start + len(pairs)] = self._file[chosen.astype(np.int64)]

    def _draw(self, cells: np.ndarray) -> np.ndarray:
        """Return a uint64 for each cell, by splitmix64 of the seed, the cell's size and number."""
        start = (self._seed * 2654435761 + self._cell) % 2**64
        z = (cells + np.uint64(1)) * GOLDEN + np.uint64(start)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return np.asarray(z ^ (z >> np.uint64(31)))

    def write_shards(self, folder: Path, shard_rows: int) -> int:
        rows = min(self._kept, self._max_rows)
        if rows == 0:
            raise InvalidRequest("batches", "no rows", "one or more")
        chosen = np.arange(rows) * self._kept // rows
        for shard in range(math.ceil(rows / shard_rows)):
            ids = chosen[shard * shard_rows : (shard + 1) * shard_rows]
            save(folder / f"{shard:05}.npy", self._file[ids])
        del self._file
        self._path.unlink()
        return rows


def text_chunks(path: Path, field: str = "text") -> Iterator[str]:
    try:
        with path.open("rb") as raw:
            gzipped = raw.read(len(GZIPPED)) == GZIPPED
        with (gzip.open if gzipped else open)(path, "rt", encoding=ENCODING) as file:
            while lines := file.readlines(CHARACTERS):
                yield "".join(lines)
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise InvalidRequest(field, f"{path}: {reason_of(error)}", TEXT) from error


class CountedText:
    def __init__(self, path: Path, tokenize: Callable[[str], list[int]]) -> None:
        self._tokenize, self._characters = tokenize, sum(map(len, text_chunks(path)))
        self._read = self._made = 0

    def tokenize(self, text: str) -> list[int]:
        ids = self._tokenize(text)
        self._read, self._made = self._read + len(text), self._made + len(ids)
        return ids

    @property
    def tokens(self) -> int:
        return round(self._made * self._characters / self._read) if self._read else 0


def token_windows(
    path: Path, tokenize: Callable[[str], list[int]], begin: list[int], window: int
) -> Iterator[list[int]]:
    """Yield windows of at most `window` tokens, each after `begin`. InvalidRequest names `text`."""
    length, ids, empty = window - len(begin), list[int](), True
    for chunk in text_chunks(path):
        for start in range(0, len(chunk), LONGEST_CHUNK):
            ids += tokenize(chunk[start : start + LONGEST_CHUNK])
        empty = empty and not ids
        for start in range(0, len(ids) - length + 1, length):
            yield begin + ids[start : start + length]
        del ids[: len(ids) // length * length]
    if empty:
        raise InvalidRequest("text", f"{path}, of no tokens", "text of one token or more")
    if ids:
        yield begin + ids
