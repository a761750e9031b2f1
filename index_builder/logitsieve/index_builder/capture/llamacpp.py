"""Run a GGUF model in llama.cpp over a text and keep the inputs of its output layer.

Its output layer is not computed: llama.cpp stops before it. The matrix stays in the file, which
`build` takes as its `weight`.

Shape letters: T tokens of a window, D hidden size.
"""

from __future__ import annotations

import json
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import asdict
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.requests import whole
from logitsieve.api.results import Float32
from logitsieve.index_builder.capture.checkpoint import SCRATCH, kept_sample
from logitsieve.index_builder.capture.text_chunks import TEXT, text_chunks
from logitsieve.index_builder.config import LONGEST_WINDOW, WINDOW, CaptureConfig
from logitsieve.index_builder.workers import Shared, Workers
from logitsieve.llamacpp import LlamaContext
from logitsieve.utils.environment import name_in_errors
from logitsieve.utils.options import Progress, ProgressOption, to_progress

SHORTER = "window: got %d, but the model was trained on %d positions: it reads so many"
logger = logging.getLogger(__name__)


def capture_gguf(
    gguf: Path | str,
    text: Path | str,
    out: Path | str,
    *,
    window: int = WINDOW,
    threads: int = 1,
    config: CaptureConfig | None = None,
    progress: ProgressOption = "auto",
    executor: Executor | None = None,
) -> dict[str, Any]:
    """Write `out`: `00000.npy` ... (contexts) and `capture.json`, whose contents are returned.

    The model reads the text once through, `window` tokens at a stretch, each begun with the token
    that its tokenizer begins text with. Contexts are multiplied by the architecture's scale of
    logits, so that W h + b are the model's logits but for a softcap. `progress` gets (stage, rows
    seen, 0). `executor` reads the stretches side by side; other processes open `gguf` by its path,
    each with `threads` threads. InvalidRequest names the argument at fault, also the `text` that
    makes no tokens; then nothing is written. A capture that is killed or interrupted goes on, if
    called again within a day with the same text, from what lies beside `out`.
    """
    config, progress = config or CaptureConfig(), to_progress(progress, "capture")
    out, text = Path(out), Path(text)
    window = whole("window", window, 2, LONGEST_WINDOW)
    if out.exists():
        raise InvalidRequest("out", out, "a path that does not exist")
    if not text.is_file():
        raise InvalidRequest("text", text, TEXT)
    with LlamaContext(gguf, positions=window, threads=threads) as context:
        context.headless = True
        if window > context.trained_positions:
            logger.warning(SHORTER, window, context.trained_positions)
            window = context.trained_positions
        out.parent.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=out.parent))
        try:
            shared = Shared(
                OneReader(context, Lock()), _open, (), (str(Path(gguf).absolute()), window, threads)
            )
            read = partial(_read, Workers(executor, folder), shared)
            summary = _capture(context, read, text, folder, window, config, progress)
            folder.chmod(0o755)
            folder.rename(out)
        except BaseException:
            shutil.rmtree(folder)
            raise
    return summary


def _capture(
    context: LlamaContext,
    read: Callable[[Iterable[list[int]]], Iterable[Float32]],
    text: Path,
    folder: Path,
    window: int,
    config: CaptureConfig,
    progress: Progress,
) -> dict[str, Any]:
    gguf = context.gguf
    file = gguf.path.stat()
    model = f"{gguf.path.absolute()}", file.st_size, file.st_mtime_ns
    with kept_sample(folder.parent, gguf.dim, config, *model, window) as sample:
        for rows_TD in read(sample.missing(windows(context, text, window))):
            sample.add(rows_TD)
            progress("capture", sample.rows.seen, 0)
        if not sample.rows.seen:
            raise InvalidRequest("text", f"{text}, of no tokens", "text of one token or more")
        rows, seen = sample.write_shards(folder, config.shard_rows)
    summary = {
        "rows": rows,
        "rows_seen": seen,
        "vocabulary_size": gguf.vocab_size,
        "dim": gguf.dim,
        "model": str(gguf.path),
        "output_layer": gguf.matrix.name,
        "window": window,
        **asdict(config),
    }
    written = folder / "capture.json"
    with name_in_errors(written):
        written.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    return summary


def _read(
    workers: Workers, shared: Shared[OneReader], stretches: Iterable[list[int]]
) -> Iterator[Float32]:
    return workers.map(read_stretch, ((shared, tokens) for tokens in stretches))


class OneReader(NamedTuple):
    """A context that threads read with one after the other."""

    context: LlamaContext
    lock: Lock


def read_stretch(reader: OneReader, tokens: list[int]) -> Float32:
    """float32 [T, D]: the inputs of the output layer for each token of a stretch."""
    with reader.lock:
        reader.context.forget()
        return reader.context.read(tokens, every=True)


def _open(gguf: str, window: int, threads: int) -> OneReader:
    context = LlamaContext(gguf, positions=window, threads=threads)
    context.headless = True
    return OneReader(context, Lock())


def windows(context: LlamaContext, text: Path, window: int) -> Iterator[list[int]]:
    """The tokens of `text`, [T] at a time, the last time fewer; T = `window` with the first one."""
    begun = context.begin
    length = window - len(begun)
    ids: list[int] = []
    for chunk in text_chunks(text):
        ids += context.tokenize(chunk, begin=False, special=False)
        while len(ids) >= length:
            yield begun + ids[:length]
            del ids[:length]
    if ids:
        yield begun + ids
