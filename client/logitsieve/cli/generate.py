from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import MISSING, asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.keywords import ModelSpec, asked_max_error
from logitsieve.api.watermark import WatermarkKey
from logitsieve.cli.options import (
    ENGINE,
    AsJson,
    EngineName,
    flag,
    idle_cores,
    index_folder,
    llama_threads,
    read_all,
    read_text,
    say_engine,
)
from logitsieve.cli.output import print_json

if TYPE_CHECKING:
    from logitsieve.cli.background import BackgroundIndex
    from logitsieve.client.llamacpp import Generation, LlamaAttachment, LlamaContext
    from logitsieve.client.llamacpp_generation import GenerationCost
    from logitsieve.decoding import LocalDecoder
    from logitsieve.llamacpp import GgufModel

DENSE, SKETCH = "dense", "sketch"
DENSE_ANSWERS = "llama.cpp's own head answers."
SOFTCAPPED = f"No index is made, as the model caps its logits: {DENSE_ANSWERS}"
TOGETHER = "\nMore than {} texts at once are continued by all rows."

DRAWS = ("temperature", "top_k", "top_p", "min_p", "seed", "watermark_key")
PENALTIES = ("repetition_penalty", "presence_penalty", "frequency_penalty", "penalized")
SETTINGS = (*DRAWS, *PENALTIES, "guidance_scale", "negative_prompt")


@dataclass(frozen=True, kw_only=True)
class HeadOptions:
    index: Path | None = flag(
        None,
        "An index of the model's output matrix, <name>/<version>. Without it, one is made in the"
        " background and kept in ~/.cache/logitsieve.",
        callback=index_folder,
    )
    head: str = flag(
        "",
        "A head of the index, at its stored knobs, by default sketch. dense is llama.cpp's own"
        " output layer, and makes no index.",
    )
    max_error: float | None = flag(
        None,
        "The largest chance that the head sketch chooses a wrong token: from 0 (a proof) to below"
        " 1, by default 1e-15.",
    )
    threads: int | None = llama_threads()
    engine: EngineName = flag("auto", ENGINE)

    def model(self, path: Path) -> GgufModel:
        """Read the model's header; InvalidRequest for options or an index that do not fit it."""
        from logitsieve.index.reader import read_contents
        from logitsieve.llamacpp import GgufModel

        if self.index is None and self.head not in ("", SKETCH, DENSE):
            allowed = f"{SKETCH}, {DENSE}; others with their --index"
            raise InvalidRequest("head", repr(self.head), allowed)
        if asked_max_error(self.max_error) is not None and self.head not in ("", SKETCH):
            raise InvalidRequest("max_error", self.max_error, f"none beside the head {self.head!r}")
        gguf = GgufModel(path)
        if self.index is not None:
            made, model = read_contents(self.index).manifest, gguf.matrix.shape
            if (made.vocab_size, made.dim) != model:
                got = f"{self.index}: V = {made.vocab_size}, D = {made.dim}"
                raise InvalidRequest("index", got, f"the model's, V = {model[0]}, D = {model[1]}")
        return gguf

    @contextmanager
    def attached(self, context: LlamaContext, threads: int, *, dense: bool) -> Iterator[Handover]:
        """Attach the head to a context; llama.cpp's own if `dense` or until an index is made."""
        from logitsieve.cli.background import index_of_cache, warm_decoder
        from logitsieve.client.llamacpp import attach

        head, decoder, making = DENSE, None, None
        if self.index is not None and not dense:
            decoder = warm_decoder(self.index, threads)
            head = head_of(decoder, self.head)
        elif not dense:
            decoder, making = index_of_cache(context.gguf, threads, self.engine)
            head = DENSE if decoder is None else SKETCH
        spec = ModelSpec(head=head)
        if self.max_error is not None:
            spec["max_error"] = self.max_error
        with making or nullcontext(), attach(context, decoder, **spec) as attached:
            yield Handover(attached, decoder, making, spec, threads)


@dataclass(frozen=True, kw_only=True)
class GenerateOptions:
    model: Path = flag(MISSING, "The model, GGUF.", "--model", "-m")
    prompt: tuple[str, ...] = flag(
        (),
        "The text to continue; several texts are decoded together and shown at the end.",
        "--prompt",
        "-p",
    )
    file: typer.FileText | None = flag(
        None,
        "A file with the text to continue; - is standard input.",
        "--file",
        "-f",
        encoding="utf-8-sig",
    )
    chat: bool = flag(
        False, "Take the prompt for a user's message, by the model's chat template.", "--chat"
    )
    system: str | None = flag(None, "The system message for --chat.")
    wait: bool = flag(
        False, "After the text, wait for the index to be made in the background.", "--wait"
    )
    max_tokens: int = flag(
        128, "Most tokens of each continuation.", "--max-tokens", "-n", min=1, max=1 << 30
    )
    json_schema: Path | None = flag(
        None, "A file with a JSON schema that each continuation follows.", "--json-schema"
    )
    regex: str | None = flag(None, "A regular expression that matches each whole continuation.")
    stop: tuple[str, ...] = flag((), "A text before which a continuation ends; repeatable.")
    logprobs: bool = flag(
        False, "Add each token's log-probability under the full softmax to --json.", "--logprobs"
    )
    ctx_size: int | None = flag(
        None,
        "Most tokens of all prompts and continuations together; by default as many as the model was"
        " trained on, at most 4096.",
        "--ctx-size",
        "-c",
        min=1,
        max=1 << 20,
    )
    temperature: float | None = flag(
        None,
        "Temperature of draws; 0 takes the best token. By default 0, or 1 if another option of"
        " draws is given.",
        "--temp",
        "--temperature",
    )
    top_k: int | None = flag(None, "Draw among this many best tokens; 0: all.", "--top-k")
    top_p: float | None = flag(
        None, "Draw among the fewest best tokens with this total probability.", "--top-p"
    )
    min_p: float | None = flag(
        None, "Draw among tokens with at least this share of the best's probability.", "--min-p"
    )
    seed: int | None = flag(None, "Seed of the draws; fresh draws if absent.", "--seed", "-s")
    watermark_key: Path | None = flag(
        None,
        "A file with a secret of 16 to 64 bytes, with which `logitsieve detect` recognizes the"
        " text.",
    )
    repetition_penalty: float | None = flag(
        None, "Divides a repeated token's logit if it is positive; multiplies it if negative."
    )
    presence_penalty: float | None = flag(None, "Subtracted from a repeated token's logit.")
    frequency_penalty: float | None = flag(
        None, "Subtracted from a token's logit for each occurrence."
    )
    penalized: int | None = flag(None, "How many last tokens are penalized; by default 64.")
    guidance_scale: float | None = flag(
        None, "Factor of the logits' difference from those after the negative prompt."
    )
    negative_prompt: str | None = flag(
        None,
        "The text that --guidance-scale moves away from; with --chat another user's message. By"
        " default the prompt's last token.",
    )
    lookup: bool = flag(
        False,
        "Speculate that the text repeats itself, and read ahead. The output stays the same. For one"
        " prompt.",
        "--lookup",
    )

    def prompts(self) -> tuple[str, ...]:
        if bool(self.prompt) == (self.file is not None):
            got = "both --prompt and --file" if self.prompt else "nothing"
            raise InvalidRequest("prompt", got, "one of --prompt and --file")
        if self.file is None:
            return self.prompt
        try:
            return (read_all("file", self.file).removesuffix("\n"),)
        except UnicodeDecodeError as error:
            raise InvalidRequest("file", str(error), "a UTF-8 text file") from error

    def settings(self) -> dict[str, Any]:
        given = {name: getattr(self, name) for name in SETTINGS if getattr(self, name) is not None}
        if given.keys() & {*DRAWS}:
            given.setdefault("temperature", 1.0)
        if "seed" in given:
            given["seeds"] = given.pop("seed")
        if "watermark_key" in given:
            key = WatermarkKey.read(given.pop("watermark_key"), "watermark_key")
            given["watermark"] = key
        more = {"max_tokens": self.max_tokens, "stop": self.stop, "logprobs": self.logprobs}
        return given | more

    def grammar(self, context: LlamaContext) -> dict[str, Any]:
        if self.json_schema is None and self.regex is None:
            return {}
        if self.json_schema is not None and self.regex is not None:
            raise InvalidRequest("regex", repr(self.regex), "one of --json-schema and --regex")
        from logitsieve.client.llamacpp import grammars_of

        grammars = grammars_of(context)
        if self.json_schema is not None:
            schema = read_text("json_schema", self.json_schema, "a file with a JSON schema")
            return {"grammar": grammars.json_schema(schema).matcher}
        return {"grammar": grammars.regex(self.regex or "").matcher}


def command(options: GenerateOptions, heads: HeadOptions, as_json: AsJson = False) -> None:
    """Continue a text by a GGUF model, or answer a message with --chat.

    llama.cpp computes each token's hidden state, and a head of the index chooses the token. Without
    an index llama.cpp computes all logits until one is made in the background; with --head dense
    it always does. The best token is chosen unless --temp, --top-k, --top-p, --min-p, --seed or
    --watermark-key is given. The last line, on stderr, tells the speed, the exact logits computed
    for each token, and how many tokens are proven.

    Example: logitsieve generate -m lm.gguf --index models/lm/1 --max-error 0 --prompt "The"
    """
    from logitsieve.client.llamacpp import PromptLookup
    from logitsieve.llamacpp import chat_prompt, open_context

    settings, given = options.settings(), options.prompts()
    if options.logprobs and not as_json:
        raise InvalidRequest("logprobs", "text output", "--logprobs with --json")
    if options.system is not None and not options.chat:
        raise InvalidRequest("system", repr(options.system), "--system with --chat")
    threads = heads.threads or idle_cores()
    size: dict[str, Any] = {"positions": options.ctx_size, "threads": threads}
    gguf = heads.model(options.model)
    sequences = len(given) * (1 if options.guidance_scale in (None, 1) else 2)
    with open_context(gguf, heads.engine, sequences=sequences, **size) as context:
        say_engine(context, heads.engine)
        settings |= options.grammar(context)
        prompts = given
        if options.chat:
            prompts = tuple(chat_prompt(context, each, options.system) for each in given)
            if options.negative_prompt is not None:
                negative = chat_prompt(context, options.negative_prompt, options.system)
                settings["negative_prompt"] = negative
        dense = heads.head == DENSE or (heads.index is None and _only_dense(context, settings))
        with heads.attached(context, threads, dense=dense) as handover:
            if handover.making is not None and heads.threads is None:
                context.use_threads(max(1, threads - 1))  # a core for the index
            drafter = PromptLookup() if options.lookup else None
            generation = handover.attached.generate(prompts, drafter=drafter, **settings)
            _show(generation, given, handover, options, as_json)


def _only_dense(context: LlamaContext, settings: Mapping[str, Any]) -> bool:
    """Return True, and say so, if only llama.cpp can answer as the model caps its logits."""
    drawn = settings.get("temperature", 0) > 0 and not settings.get("top_k")
    only = context.gguf.softcap is not None and (drawn or settings["logprobs"])
    if only:
        print(SOFTCAPPED, file=sys.stderr)
    return only


def _show(
    generation: Generation,
    prompts: Sequence[str],
    handover: Handover,
    options: GenerateOptions,
    as_json: bool,
) -> None:
    single = len(prompts) == 1 and not as_json
    if single and not options.chat:
        print(prompts[0], end="", flush=True)
    for token in generation:
        if single:
            print(_printable(token.text), end="", flush=True)
        handover.follow(generation.counts)
    counts = generation.counts
    if as_json:
        made = {"texts": generation.texts, "ids": generation.ids, "head": handover.head}
        log_probs = {"logprobs": generation.log_probs} if options.logprobs else {}
        print_json({**made, **log_probs, **asdict(counts)})
    elif single:
        print()
    else:
        for prompt, text in zip(prompts, generation.texts, strict=True):
            print(prompt + "\n" * options.chat + _printable(text))
    handover.end(wait=options.wait)
    if not as_json:
        print(handover.cost(counts, len(prompts)), file=sys.stderr)


def _printable(text: str) -> str:
    return "".join(one if one.isprintable() or one in "\n\t" else ascii(one)[1:-1] for one in text)


class Handover:
    """Generates with llama.cpp's own head until an index is made, then with a head of the index."""

    def __init__(
        self,
        attached: LlamaAttachment,
        decoder: LocalDecoder | None,
        making: BackgroundIndex | None,
        spec: ModelSpec,
        threads: int,
    ) -> None:
        self.head, self.decoder = spec["head"], decoder
        self.attached, self.making = attached, making
        self._spec, self._threads = spec, threads
        self._before: GenerationCost | None = None  # cost before the handover

    def follow(self, counts: GenerationCost) -> None:
        making = self.making
        if making is None or (making.decoder is None and not making.error):
            return
        self.making = None
        self.attached.context.use_threads(self._threads)
        if making.decoder is None:
            self._say(f"No index could be made: {making.error}")
            return
        self.decoder, self.head = making.decoder, SKETCH
        self._spec = {**self._spec, "head": SKETCH}
        self.attached.swap(making.decoder, **self._spec)
        self._before = replace(counts)
        self._say(f"The index is made after {making.seconds:.0f} s: {self.head} answers from here.")

    def end(self, wait: bool) -> None:
        """Tell the state of an index that was not used, perhaps after a `wait` for it."""
        making = self.making
        if making is None:
            return
        if wait:
            making.wait()
        ended = "is not finished and is dropped: --wait lets it finish."
        if making.error:
            ended = f"could not be made: {making.error}"
        elif making.decoder is not None:
            ended = "is made: the next text begins with it."
        print(f"After {making.seconds:.0f} s the index {ended}", file=sys.stderr)

    def cost(self, counts: GenerationCost, texts: int) -> str:
        if self._before is None or self._before.tokens == counts.tokens:
            return self._cost(counts, texts)
        own = _dense(self._before, self.attached.context.gguf.vocab_size)
        return f"{own}; then {self._cost(_less(counts, self._before), texts)}"

    def _cost(self, counts: GenerationCost, texts: int) -> str:
        vocab_size = self.attached.context.gguf.vocab_size
        if self.decoder is None or self.head == DENSE:
            return _dense(counts, vocab_size)
        scanned = counts.scanned / counts.tokens
        engine = self.decoder.engine_for(self._spec, 1, 1)
        max_error, most = engine.max_error, engine.answering.most_rows
        certain = f"{counts.proven} tokens proven"
        if 0 < max_error < 1:
            certain = f"each token right but for a chance of {max_error:g}"
        all_rows = texts > most and 2 * scanned > vocab_size
        return (
            f"{_speed(counts)}, the head alone {counts.tokens / counts.head_s:,.0f}; "
            f"{scanned:,.0f} of {vocab_size:,} rows a token, {certain}"
        ) + TOGETHER.format(most) * all_rows

    def _say(self, line: str) -> None:
        print("\n" * sys.stdout.isatty() + line, file=sys.stderr)


def head_of(decoder: LocalDecoder, asked: str) -> str:
    """Return the head that is asked for, by default `sketch` or `full`; or InvalidRequest."""
    heads = decoder.index.heads
    chosen = asked or (SKETCH if SKETCH in heads else "full")
    if chosen not in heads:
        raise InvalidRequest("head", chosen, ", ".join((*heads, DENSE)))
    return chosen


def _less(counts: GenerationCost, before: GenerationCost) -> GenerationCost:
    return type(counts)(
        **{name: value - getattr(before, name) for name, value in asdict(counts).items()}
    )


def _speed(counts: GenerationCost) -> str:
    speed = f"{counts.tokens} tokens: {counts.tokens / counts.seconds:,.1f} a second"
    if counts.drafted:
        speed += f" ({counts.accepted} of {counts.drafted} drafts right)"
    return speed


def _dense(counts: GenerationCost, vocab_size: int) -> str:
    # llama.cpp's graph includes the head, so that it has no time of its own.
    return f"{_speed(counts)}, all {vocab_size:,} logits of each"
