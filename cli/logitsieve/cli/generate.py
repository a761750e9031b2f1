"""`logitsieve generate`: text by a GGUF model in llama.cpp, with a head of an index."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from logitsieve.api.errors import IndexUnreadable, InvalidRequest, MissingExtra
from logitsieve.cli.options import AsJson, flag, idle_cores, numbers
from logitsieve.cli.output import print_json
from logitsieve.utils.environment import require
from logitsieve.utils.stored import KINDS

if TYPE_CHECKING:
    from logitsieve.client.llamacpp import Generation
    from logitsieve.client.llamacpp_generation import GenerationCost
    from logitsieve.decoding import LocalDecoder
    from logitsieve.llamacpp import GgufModel

DENSE, CERTIFIED = "dense", "certified"
DENSE_ANSWERS = "llama.cpp's own head answers."
MAKING = "No --index is given: one is made first, and kept for the next text."
DIGITS = 16  # of a hash, which names an index in the cache
FEW_ROWS = 64  # contexts show that the heads answer
SLOW = "\nMore than half of the rows were computed: --head dense is likely as fast here."
SLOW_SHARE = 0.5  # of the rows

WHOLE = ("top_k", "penalized", "seed")  # integers of --sample
SETTINGS = (
    *("temperature", "top_k", "top_p", "min_p", "seed", "repetition_penalty"),
    *("presence_penalty", "frequency_penalty", "penalized"),
)


@dataclass(frozen=True, kw_only=True)
class GenerateOptions:
    gguf: Path = flag(MISSING, "The model.", "--gguf", "-m")
    prompt: tuple[str, ...] = flag(
        (),
        "The text to continue; repeated, all are decoded together and shown at the end.",
        "--prompt",
        "-p",
    )
    file: typer.FileText | None = flag(
        None,
        "A file with the text to continue; - is standard input.",
        "--file",
        "-f",
        encoding="utf-8",
    )
    chat: bool = flag(
        False, "The prompt is a user's message, for the model's chat template.", "--chat"
    )
    system: str | None = flag(None, "The system's message before it, with --chat.")
    index: Path | None = flag(
        None,
        "An index of the model's output matrix, <name>/<version>, for its heads. Without it one is"
        " made first, and kept in ~/.cache/logitsieve.",
    )
    head: str = flag(
        "",
        "certified, screen or another head of the index, at its stored knobs; dense is llama.cpp's"
        " own, and makes no index. By default the fastest point of --index for its target, or"
        " certified without it, where assured and estimated can be named too.",
    )
    max_tokens: int = flag(
        128, "Tokens of each continuation, at most.", "--max-tokens", "-n", min=1, max=1 << 30
    )
    stop: tuple[str, ...] = flag((), "A text that ends a continuation before it; repeatable.")
    logprobs: bool = flag(
        False, "Add each token's log-probability under the full softmax to --json.", "--logprobs"
    )
    ctx: int | None = flag(
        None,
        "Tokens that all prompts and continuations together may have. By default as many as the"
        " model was trained on, at most 4096.",
        "--ctx",
        "-c",
        min=1,
        max=1 << 20,
    )
    sample: tuple[str, ...] = flag(
        (),
        f"Draw instead of taking the best token, or edit the logits: {', '.join(SETTINGS)}.",
        metavar="NAME=VALUE,...",
    )
    threads: int | None = flag(
        None,
        "CPU threads, of llama.cpp and of the index; by default one for each idle core.",
        "--threads",
        "-t",
        min=1,
        max=1024,
    )

    def prompts(self) -> tuple[str, ...]:
        if bool(self.prompt) == (self.file is not None):
            got = "both --prompt and --file" if self.prompt else "nothing"
            raise InvalidRequest("prompt", got, "one of --prompt and --file")
        if self.file is None:
            return self.prompt
        try:
            return (self.file.read().removesuffix("\n"),)
        except UnicodeDecodeError as error:
            raise InvalidRequest("file", str(error), "a UTF-8 text file") from error

    def settings(self) -> dict[str, Any]:
        given: dict[str, Any] = dict(numbers("sample", self.sample))
        for name, value in given.items():
            if name not in SETTINGS:
                raise InvalidRequest("sample", repr(name), ", ".join(SETTINGS))
            if name in WHOLE:
                if value != int(value):
                    raise InvalidRequest(f"sample.{name}", value, "a whole number")
                given[name] = int(value)
        if {"temperature", "top_k", "top_p", "min_p", "seed"} & given.keys():
            given.setdefault("temperature", 1.0)
        if "seed" in given:
            given["seeds"] = given.pop("seed")
        more = {"max_tokens": self.max_tokens, "stop": self.stop, "logprobs": self.logprobs}
        return given | more


def command(options: GenerateOptions, as_json: AsJson = False) -> None:
    """Continue a text by a GGUF model, or answer a message with --chat, as the tokens come.

    llama.cpp computes each token's hidden state, and a head of the index chooses the token; with
    --head dense llama.cpp computes all logits, and its rounding may change a token. Greedy unless
    --sample names a setting. The last line, on stderr, has tokens a second in all and of the head
    alone, rows of the output matrix computed exactly, and tokens proven to be the full softmax's.

    Example: logitsieve generate --gguf lm.gguf --index models/lm/1 --head certified --prompt "The"
    """
    from logitsieve.client.llamacpp import LlamaContext, attach
    from logitsieve.heads.certified import GRADES
    from logitsieve.llamacpp import GgufModel, chat_prompt

    settings, given = options.settings(), options.prompts()
    if options.logprobs and not as_json:
        raise InvalidRequest("logprobs", "text output", "--logprobs with --json")
    if options.system is not None and not options.chat:
        raise InvalidRequest("system", repr(options.system), "--system with --chat")
    if options.index is None and options.head not in ("", DENSE, CERTIFIED, *GRADES):
        raise InvalidRequest("index", "nothing", f"an index with the head {options.head}")
    threads = options.threads or idle_cores()
    size: dict[str, Any] = {"positions": options.ctx, "threads": threads}
    gguf = GgufModel(options.gguf)
    if options.index is not None:
        _refuse_another_shape(options.index, gguf)
    with LlamaContext(gguf, sequences=len(given), **size) as context:
        prompts = given
        if options.chat:
            prompts = tuple(chat_prompt(context, each, options.system) for each in given)
        decoder, head = None, options.head
        if options.index is not None:
            decoder = None if head == DENSE else _warm_decoder(options.index, threads)
        elif head != DENSE and not _only_dense(context.gguf, settings):
            decoder = _decoder_of_cache(context.gguf, threads)
            if decoder is not None and head not in decoder.index.heads:
                head = CERTIFIED
        head = DENSE if decoder is None else head
        with attach(context, decoder, head=head) as attached:
            _show(attached.generate(prompts, **settings), given, head, options, as_json)


def _refuse_another_shape(index: Path, gguf: GgufModel) -> None:
    """InvalidRequest unless V and D are the model's, before either is opened."""
    from logitsieve.index.reader import read_contents

    made, model = read_contents(index).manifest, gguf.matrix.shape
    if (made.vocab_size, made.dim) != model:
        got = f"{index}: V = {made.vocab_size}, D = {made.dim}"
        raise InvalidRequest("index", got, f"the model's, V = {model[0]}, D = {model[1]}")


def _warm_decoder(index: Path, threads: int) -> LocalDecoder:
    from logitsieve.decoding import LocalDecoder
    from logitsieve.index import open_index

    decoder = LocalDecoder(open_index(index, threads=threads))
    decoder.warm()
    return decoder


def _decoder_of_cache(model: GgufModel, threads: int) -> LocalDecoder | None:
    """Open the model's index in the cache, made if it is missing; None if none can be made."""
    from logitsieve.kernels.compile import default_cache

    kind = model.matrix.kind if model.matrix.kind in KINDS else "F32"
    path = default_cache() / "indexes" / model.sha256(kind)[:DIGITS] / "1"
    if path.exists():
        try:
            decoder = _warm_decoder(path, threads)
            print(f"No --index is given: that in {path} answers.", file=sys.stderr)
            return decoder
        except IndexUnreadable as error:
            print(f"{error}: it is made again.", file=sys.stderr)
            shutil.rmtree(path)
    try:
        require("builder", "numba", "torch", "faiss", "threadpoolctl")
        from logitsieve.cli.build import BuildOptions, build_index
        from logitsieve.index_builder import BuildConfig

        print(MAKING, file=sys.stderr)
        config = BuildConfig(threads=threads, heldout_rows=FEW_ROWS)
        build_index(BuildOptions(weight=str(model.path), out=path), config)
    except (MissingExtra, OSError) as error:
        print(f"No index can be made: {error}. {DENSE_ANSWERS}", file=sys.stderr)
        return None
    return _warm_decoder(path, threads)


def _only_dense(model: GgufModel, settings: Mapping[str, Any]) -> bool:
    """Return True, and say so, if only llama.cpp can answer, as the model bends its logits."""
    drawn = settings.get("temperature", 0) > 0 and not settings.get("top_k")
    only = model.softcap is not None and (drawn or settings["logprobs"])
    if only:
        print(f"No index is made, as the model bends its logits: {DENSE_ANSWERS}", file=sys.stderr)
    return only


def _show(
    generation: Generation,
    prompts: Sequence[str],
    head: str,
    options: GenerateOptions,
    as_json: bool,
) -> None:
    single = len(prompts) == 1 and not as_json
    if single and not options.chat:
        print(prompts[0], end="", flush=True)
    for token in generation:
        if single:
            print(_printable(token.text), end="", flush=True)
    counts = generation.counts
    if as_json:
        made = {"texts": generation.texts, "ids": generation.ids, "head": head}
        log_probs = {"logprobs": generation.log_probs} if options.logprobs else {}
        print_json({**made, **log_probs, **asdict(counts)})
    elif single:
        print()
    else:
        for prompt, text in zip(prompts, generation.texts, strict=True):
            print(prompt + "\n" * options.chat + _printable(text))
    if not as_json:
        print(_cost(counts, generation.context.gguf.vocab_size, head), file=sys.stderr)


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() or one in "\n\t" else ascii(one)[1:-1] for one in text)


def _cost(counts: GenerationCost, vocab_size: int, head: str) -> str:
    speed = f"{counts.tokens} tokens: {counts.tokens / counts.seconds:,.1f} a second"
    if head == DENSE:  # part of llama.cpp's graph, without a time of its own
        return f"{speed}, all {vocab_size:,} logits of each"
    scanned = counts.scanned / counts.tokens
    much = scanned > SLOW_SHARE * vocab_size
    return (
        f"{speed}, the head alone {counts.tokens / counts.head_s:,.0f}; "
        f"{scanned:,.0f} of {vocab_size:,} rows a token, {counts.proven} tokens proven"
    ) + SLOW * much
