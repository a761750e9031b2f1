"""`logitsieve generate`: text by a GGUF model in llama.cpp, with a head of an index."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import MISSING, asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from logitsieve.api.errors import InvalidRequest
from logitsieve.cli.options import AsJson, flag, idle_cores, numbers
from logitsieve.cli.output import print_json

if TYPE_CHECKING:
    from logitsieve.client.llamacpp import Generation, LlamaContext
    from logitsieve.client.llamacpp_generation import Counts
    from logitsieve.decoding import LocalDecoder

DENSE = "dense"
NO_INDEX = (
    "No --index is given: llama.cpp's own head chooses the tokens. An index is made by `logitsieve "
    "capture --gguf {gguf} --text TEXT --out CONTEXTS`, then `logitsieve build --weight {gguf} "
    "--contexts CONTEXTS --out models/NAME/1`."
)
MOST = 0.5  # share of the rows above which llama.cpp's own head is likely as fast
WHOLE = ("top_k", "penalized")  # settings of --sample that are whole numbers
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
        False, "The prompt is a user's message, put as the model's chat template has it.", "--chat"
    )
    system: str | None = flag(None, "The system's message before it, with --chat.")
    index: Path | None = flag(
        None, "An index of the model's output matrix, <name>/<version>, for its heads."
    )
    head: str = flag(
        "",
        "certified, screen or another head of the index, at its stored knobs; dense is llama.cpp's"
        " own. By default the index's fastest point for its target, or dense without an index.",
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

    @property
    def dense(self) -> bool:
        """True where llama.cpp's own head answers."""
        return self.head == DENSE or (self.index is None and not self.head)

    def prompts(self) -> tuple[str, ...]:
        """The texts to continue, a file's without its last line break."""
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
        """Keywords of `GenerationOptions`; InvalidRequest names `sample`."""
        given: dict[str, Any] = dict(numbers("sample", self.sample))
        for name, value in given.items():
            if name not in SETTINGS:
                raise InvalidRequest("sample", repr(name), ", ".join(SETTINGS))
            if name in (*WHOLE, "seed"):
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

    llama.cpp computes each token's hidden state; a head of the index chooses the token from it.
    Without an index, or with --head dense, llama.cpp computes all logits itself: the same tokens,
    but for its rounding, and the times to compare with. Greedy unless --sample names a setting.
    The last line, on stderr, has tokens a second, of the head alone and in all without the prompt,
    rows of the output matrix whose exact logit was computed, and tokens proven to be the full
    softmax's.

    Example: logitsieve generate --gguf lm.gguf --index models/lm/1 --head certified --prompt "The"
    """
    from logitsieve.client.llamacpp import LlamaContext, attach, generate
    from logitsieve.llamacpp import chat_prompt

    settings, given = options.settings(), options.prompts()
    if options.logprobs and not as_json:
        raise InvalidRequest("logprobs", "text output", "--logprobs with --json")
    if options.system is not None and not options.chat:
        raise InvalidRequest("system", repr(options.system), "--system with --chat")
    if options.index is None and not options.dense:
        raise InvalidRequest("index", "nothing", f"an index with the head {options.head}")
    threads = options.threads or idle_cores()
    size: dict[str, Any] = {"positions": options.ctx, "threads": threads}
    with LlamaContext(options.gguf, sequences=len(given), **size) as context:
        prompts = given
        if options.chat:
            prompts = tuple(chat_prompt(context, each, options.system) for each in given)
        if options.index is None and not options.head:
            print(NO_INDEX.format(gguf=options.gguf), file=sys.stderr)
        if options.index is None or options.dense:
            _show(generate(context, prompts, **settings), given, context, options, as_json)
            return
        with attach(context, _decoder(options.index, threads), head=options.head) as head:
            _show(head.generate(prompts, **settings), given, context, options, as_json)


def _decoder(index: Path, threads: int) -> LocalDecoder:
    from logitsieve.decoding import LocalDecoder
    from logitsieve.index import open_index

    decoder = LocalDecoder(open_index(index, threads=threads))
    decoder.warm()  # compiled before anything is timed
    return decoder


def _show(
    generation: Generation,
    prompts: Sequence[str],
    context: LlamaContext,
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
        head = DENSE if options.dense else options.head
        made = {"texts": generation.texts, "ids": generation.ids, "head": head}
        log_probs = {"logprobs": generation.log_probs} if options.logprobs else {}
        print_json({**made, **log_probs, **asdict(counts)})
        return
    if single:
        print()
    else:
        for prompt, text in zip(prompts, generation.texts, strict=True):
            print(prompt + "\n" * options.chat + _printable(text))
    vocab_size = context.gguf.vocab_size
    print(_cost(counts, vocab_size, dense=options.dense), file=sys.stderr)
    if not options.dense and counts.scanned > MOST * vocab_size * counts.tokens:
        said = "More than half of the rows were computed: --head dense is likely as fast here."
        print(said, file=sys.stderr)


def _cost(counts: Counts, vocab_size: int, *, dense: bool) -> str:
    speed = f"{counts.tokens} tokens: {counts.tokens / counts.seconds:,.1f} a second"
    if dense:  # llama.cpp's head is part of its graph: it has no time of its own
        return f"{speed}, all {vocab_size:,} logits of each"
    return (
        f"{speed}, the head alone {counts.tokens / counts.head_s:,.0f}; "
        f"{counts.scanned / counts.tokens:,.0f} of {vocab_size:,} rows a token, "
        f"{counts.proven} tokens proven"
    )


def _printable(text: str) -> str:
    """The text without control characters, but for line breaks and tabs."""
    return "".join(one if one.isprintable() or one in "\n\t" else ascii(one)[1:-1] for one in text)
