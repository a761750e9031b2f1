"""Run a GGUF model in llama.cpp over a text and keep the inputs of its output layer.

Its output layer is not computed: llama.cpp stops before it. The matrix stays in the file, which
`build` takes as its `weight`.

Shape letters: T tokens of a window, D hidden size.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.requests import whole
from logitsieve.api.results import Float32
from logitsieve.index.files import new_folder
from logitsieve.index_builder.capture.checkpoint import capture_checkpoint
from logitsieve.index_builder.capture.text_chunks import TEXT, text_chunks
from logitsieve.index_builder.config import LONGEST_WINDOW, WINDOW, CaptureConfig
from logitsieve.index_builder.workers import Shared, Workers
from logitsieve.llamacpp import LlamaContext
from logitsieve.utils.options import ProgressOption, to_progress

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
    makes no tokens; then nothing is written. A capture that is killed or interrupted resumes, if
    called again within a day with the same text, from a folder next to `out`; with another text it
    starts over.
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
        model, path = context.gguf, str(context.gguf.path.absolute())
        found = context.gguf.path.stat()
        identity = path, found.st_size, found.st_mtime_ns, window
        shared = Shared(OneReader(context, Lock()), _open, (), (path, window, threads))
        with (
            new_folder(out) as folder,
            capture_checkpoint(out, model.dim, config, *identity) as checkpoint,
        ):
            missing = checkpoint.missing(Windows(context, text, window))
            calls = ((shared, tokens) for tokens in missing)
            for rows_TD in Workers(executor, folder).map(read_stretch, calls):
                checkpoint.add(rows_TD)
                progress("capture", checkpoint.rows.seen, 0)
            if not checkpoint.rows.seen:
                raise InvalidRequest("text", f"{text}, of no tokens", "text of one token or more")
            return checkpoint.write(
                folder,
                config,
                vocabulary_size=model.vocab_size,
                dim=model.dim,
                model=str(model.path),
                output_layer=model.matrix.name,
                window=window,
            )


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


@dataclass(frozen=True)
class Windows:
    """The tokens of a text, `window` at a time with the first one, the last time fewer."""

    context: LlamaContext
    text: Path
    window: int

    def __iter__(self) -> Iterator[list[int]]:
        """[T] token ids of each window."""
        begun = self.context.begin
        length = self.window - len(begun)
        ids: list[int] = []
        for chunk in text_chunks(self.text):
            ids += self.context.tokenize(chunk, begin=False, special=False)
            while len(ids) >= length:
                yield begun + ids[:length]
                del ids[:length]
        if ids:
            yield begun + ids
