"""Runs a GGUF model in llama.cpp over a text or the primer, and records its contexts.

The primer has short passages of many kinds, for second moments of contexts. Bounds for a kind that
is missing (a language, code, dialogue) would be several times wider.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor
from functools import partial
from importlib.resources import files
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np

from logitsieve.api.checks import whole
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Float32
from logitsieve.index.files import new_folder
from logitsieve.index_builder.capture.stream_sample import (
    TEXT,
    CountedText,
    text_chunks,
    token_windows,
    write_sample,
)
from logitsieve.index_builder.config import LONGEST_WINDOW, WINDOW, CaptureConfig
from logitsieve.index_builder.workers import Shared, Workers
from logitsieve.llamacpp import LlamaContext, chat_prompt, open_context
from logitsieve.utils.options import Progress, ProgressOption, no_progress, to_progress

SHORTER = "window: got %d, but the model was trained on %d positions: it reads so many"
TOO_LONG = "a message of %d tokens is left out: with its answer it has to fit into window, %d"
SEPARATOR = "\n---\n"
LENGTH = 20  # tokens read of a passage; with 60, heads take 0 to 3 % less time
SKIPPED = 4  # first contexts of a passage, which do not yet depend on the kind of text
logger = logging.getLogger(__name__)


def capture_gguf(
    gguf: Path | str,
    text: Path | str | None,
    out: Path | str,
    *,
    window: int = WINDOW,
    threads: int = 1,
    chat: bool = False,
    engine: str = "llamacpp",
    config: CaptureConfig | None = None,
    progress: ProgressOption = "auto",
    executor: Executor | None = None,
) -> dict[str, Any]:
    """Write contexts (`00000.npy` ...) and `capture.json` to `out`; return the latter's contents.

    The model reads the text once, in windows of `window` tokens that begin with the tokenizer's BOS
    token if it adds one. W h + b are the logits before a softcap. With `chat`, each line is a
    user's message, and contexts are those of the model's greedy answer, at most `window` tokens
    including the prompt. `text` None reads the primer, which suffices for `full` and `sketch`.

    `progress` gets (stage, rows seen, estimated rows). `executor` reads windows in parallel; its
    processes open `gguf`, each with `threads` threads. InvalidRequest names the argument.
    """
    config, progress = config or CaptureConfig(), to_progress(progress, "capture")
    out, text = Path(out), None if text is None else Path(text)
    window = whole("window", window, 2, LONGEST_WINDOW)
    if out.exists():
        raise InvalidRequest("out", out, "a path that does not exist")
    if text is None and chat:
        raise InvalidRequest("text", "nothing", "a text of messages, for chat")
    if text is None:
        window = LENGTH
    elif not text.is_file():
        raise InvalidRequest("text", text, TEXT)
    with open_context(gguf, engine, positions=window, threads=threads) as context:
        context.headless = True
        if window > context.trained_positions:
            logger.warning(SHORTER, window, context.trained_positions)
            window = context.trained_positions
        model = context.gguf
        with new_folder(out) as folder:
            blocks: Iterable[Float32]
            if text is None:
                blocks = [read_primer(context, progress)]
            else:
                reader, workers = OneReader(context, Lock(), window), Workers(executor, folder)
                path = str(model.path.absolute())
                shared = Shared(reader, _open, (), (path, window, threads, context.host.engine))
                blocks, progress = _read(text, shared, chat, workers, progress)
            return write_sample(
                folder,
                model.dim,
                config,
                blocks,
                progress,
                vocab_size=model.vocab_size,
                dim=model.dim,
                model=str(model.path),
                output_layer=model.matrix.name,
                window=window,
                chat=chat,
                primer=text is None,
            )


def primer() -> tuple[str, ...]:
    text = files(__package__).joinpath("primer.txt").read_text(encoding="utf-8")
    return tuple(text.removesuffix("\n").split(SEPARATOR))


def read_primer(context: LlamaContext, progress: Progress = no_progress) -> Float32:
    """Return the primer's contexts [N, D], sorted by place in a passage, so that kinds mix."""
    length = min(LENGTH, context.trained_positions)
    stretches = [
        Stretch((context.begin + ids)[:length], SKIPPED)
        for ids in (context.tokenize(one, begin=False, special=False) for one in primer())
    ]
    rows = read_stretches(context, stretches, progress=progress, stage="read the primer")
    places = np.concatenate([np.arange(first, len(tokens)) for tokens, first in stretches])
    return rows[np.argsort(places, kind="stable")]


class Stretch(NamedTuple):
    """Token ids to read; contexts before place `first` are dropped."""

    tokens: list[int]
    first: int


def read_stretches(
    context: LlamaContext,
    stretches: Sequence[Stretch],
    *,
    headless: bool = True,
    progress: Progress = no_progress,
    stage: str = "read",
) -> Float32:
    rows = []
    for number, (tokens, first) in enumerate(stretches):
        rows.append(context.read_alone(tokens, headless=headless)[first:])
        progress(stage, number + 1, len(stretches))
    return np.concatenate(rows)


def gguf_primer(
    gguf: Path | str, threads: int, progress: Progress, engine: str = "llamacpp"
) -> Float32:
    with open_context(gguf, engine, positions=LENGTH, threads=threads) as context:
        context.headless = True
        return read_primer(context, progress)


def message_prompts(text: Path, context: LlamaContext, window: int) -> Iterator[list[int]]:
    """Yield each line as tokens of a chat before its answer; skip lines without room for one."""
    none = True
    for chunk in text_chunks(text):
        for line in filter(str.strip, chunk.split("\n")):
            tokens = context.tokenize(chat_prompt(context, line))
            if len(tokens) >= window:
                logger.warning(TOO_LONG, len(tokens), window)
                continue
            none = False
            yield tokens
    if none:
        raise InvalidRequest("text", f"{text}, of no message that fits", "a message on each line")


class OneReader(NamedTuple):
    context: LlamaContext
    lock: Lock
    window: int


def read_stretch(reader: OneReader, tokens: list[int]) -> Float32:
    with reader.lock:
        return reader.context.read_alone(tokens)


def read_answer(reader: OneReader, tokens: list[int]) -> Float32:
    context, made = reader.context, list(tokens)
    with reader.lock:
        context.headless = False
        context.forget()
        logits = context.read(made)
        while len(made) < reader.window and not context.ends(token := int(logits[0].argmax())):
            made.append(token)
            logits = context.step({0: token})
        return context.read_alone(made)[len(tokens) - 1 :]


def _read(
    text: Path, shared: Shared[OneReader], chat: bool, workers: Workers, progress: Progress
) -> tuple[Iterator[Float32], Progress]:
    context, _, window = shared.value
    if chat:
        prompts = message_prompts(text, context, window)
        return workers.map(read_answer, ((shared, tokens) for tokens in prompts)), progress
    counted = CountedText(text, partial(context.tokenize, begin=False, special=False))
    stretches = token_windows(text, counted.tokenize, context.begin, window)
    return (
        workers.map(read_stretch, ((shared, tokens) for tokens in stretches)),
        lambda stage, seen, _: progress(stage, seen, max(seen, counted.tokens)),
    )


def _open(gguf: str, window: int, threads: int, engine: str) -> OneReader:
    context = open_context(gguf, engine, positions=window, threads=threads)
    context.headless = True
    return OneReader(context, Lock(), window)
