"""Sequences of llama.cpp that are decoded together, one token of each at a time."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.requests import MOST_STEPS, Sampling, sampling, whole
from logitsieve.api.results import Float32
from logitsieve.client.llamacpp_heads import HeadSlot, RowEdits
from logitsieve.llamacpp import LlamaContext

Prompt = str | Sequence[int]


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """Options of a generation; InvalidRequest for a value out of range.

    Greedy at temperature 0. Temperature, filters and `seeds` work as in `Decoder.sample`.
    Penalties apply to the last `penalized` tokens of a sequence with its prompt: a positive logit
    is divided by the `repetition_penalty`, a negative one multiplied, and each falls by
    `presence_penalty`, and by `frequency_penalty` for each occurrence. `allowed` lists the ids to
    choose from, or is a function (a grammar) from a sequence's tokens, without its prompt, to that
    list. A sequence ends before any text in `stop`. `logprobs` keeps log-probabilities under the
    full softmax, before edits.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seeds: int | Sequence[int] | None = None
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    penalized: int = 64
    banned: Sequence[int] = ()
    allowed: Sequence[int] | Callable[[Sequence[int]], Sequence[int]] | None = None
    stop: Sequence[str] = ()
    logprobs: bool = False
    ignore_end: bool = False  # decode on after a token that ends the text

    def __post_init__(self) -> None:
        if isinstance(self.stop, str) or not all(isinstance(e, str) and e for e in self.stop):
            raise InvalidRequest("stop", repr(self.stop), "a list of texts, none of them empty")
        whole("max_tokens", self.max_tokens, 1, MOST_STEPS - 1)
        whole("penalized", self.penalized, 0, 1 << 30)

    def drawing(self, sequences: int) -> Sampling | None:
        """Return the checked options of draws at step 0; None if greedy."""
        names = "seeds", "temperature", "top_k", "top_p", "min_p"
        options: Any = {name: getattr(self, name) for name in names}
        checked = sampling(sequences, 1, options)
        return checked if checked.temperature > 0 else None

    def edits(self, prompt: Sequence[int], made: Sequence[int]) -> RowEdits:
        """Return the edits of the logits of a sequence's next token."""
        counts: dict[int, int] = {}
        for token in [*prompt, *made][-self.penalized :] if self.penalized else []:
            counts[token] = counts.get(token, 0) + 1
        bias = {}
        if self.presence_penalty or self.frequency_penalty:
            bias = {
                token: -self.presence_penalty - count * self.frequency_penalty
                for token, count in counts.items()
            }
        allowed = self.allowed(made) if callable(self.allowed) else self.allowed
        if allowed is None and self.allowed is not None:
            raise InvalidRequest("allowed", "a function that returned None", "one that lists ids")
        return RowEdits(
            banned=tuple(self.banned),
            allowed=None if allowed is None else list(allowed),
            bias=bias,
            repeated=list(counts) if self.repetition_penalty != 1 else (),
            repetition_penalty=self.repetition_penalty,
        )


class Token(NamedTuple):
    """A decoded token: its sequence, its id, and the text that it completes."""

    sequence: int
    id: int
    text: str  # "" at the end, and within a character or a `stop`


@dataclass
class GenerationCost:
    """The cost of a generation so far."""

    prompt_tokens: int = 0
    tokens: int = 0
    head_s: float = 0.0  # seconds in the choice of tokens
    seconds: float = 0.0  # without prompts
    prompt_s: float = 0.0
    scanned: int = 0  # exact logits computed
    proven: int = 0  # tokens proven to be the full softmax's choice


@dataclass
class _Sequence:
    number: int
    prompt: Sequence[int]
    made: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    held: str = ""  # perhaps the beginning of a `stop`
    stopped: bool = False
    utf8: Any = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))


class Generation:
    """An iterator over the tokens of all sequences, in the order of their decoding.

    `texts` and `counts` grow with it.
    """

    def __init__(
        self,
        context: LlamaContext,
        prompts: Prompt | Sequence[Prompt],
        slot: HeadSlot,
        options: GenerationOptions,
    ) -> None:
        self.context, self.counts = context, GenerationCost()
        self._slot, self._head, self._options = slot, slot.head, options
        read = [_tokens(context, prompt) for prompt in _listed(prompts)]
        if not 0 < len(read) <= context.sequences:
            allowed = f"1 to {context.sequences}, the context's sequences"
            raise InvalidRequest("prompts", f"{len(read)} prompts", allowed)
        if (total := sum(map(len, read))) > context.positions:
            allowed = f"{context.positions} at most, the positions of the cache"
            raise InvalidRequest("prompts", f"{total} tokens", allowed)
        allowed_ids = () if callable(options.allowed) else options.allowed or ()
        for field_name, ids in (("banned", options.banned), ("allowed", allowed_ids)):
            for token in ids:
                whole(field_name, token, 0, context.gguf.vocab_size - 1)
        self._drawing = options.drawing(len(read))
        self._sequences = [_Sequence(number, tokens) for number, tokens in enumerate(read)]
        self.texts = [""] * len(read)
        self._tokens = self._decoded()

    def __iter__(self) -> Iterator[Token]:
        return self._tokens

    def __next__(self) -> Token:
        return next(self._tokens)

    @property
    def ids(self) -> list[list[int]]:
        """Return the tokens of each sequence so far."""
        return [list(each.made) for each in self._sequences]

    @property
    def log_probs(self) -> list[list[float]]:
        """Return their log-probabilities; empty without `logprobs`."""
        return [list(each.log_probs) for each in self._sequences]

    def _decoded(self) -> Iterator[Token]:
        self._take_head()
        rows, running = self._read_prompts(), self._sequences
        for step in range(self._options.max_tokens):
            began = perf_counter()
            self._choose(rows, running, step)
            self.counts.seconds += perf_counter() - began
            texts = [self._text(each) for each in running]
            left = [each for each in running if not self._over(each)]
            full = len(left) > self.context.free or step + 1 == self._options.max_tokens
            for each, text in zip(running, texts, strict=True):
                yield self._shown(each, text, last=full or self._over(each))
            running = left
            if full or not running:
                return
            self._take_head()
            began = perf_counter()
            rows = self.context.step({each.number: each.made[-1] for each in running})
            self.counts.seconds += perf_counter() - began

    def _take_head(self) -> None:
        if self.context.headless != self._head.headless:
            raise InvalidRequest("context", "attached or detached meanwhile", "as it was begun")
        self._head = self._slot.head
        self.context.headless = self._head.headless

    def _read_prompts(self) -> Float32:
        began = perf_counter()
        self.context.forget()
        rows = [self.context.read(each.prompt, each.number) for each in self._sequences]
        self.counts.prompt_tokens = sum(len(each.prompt) for each in self._sequences)
        self.counts.prompt_s = perf_counter() - began
        return np.concatenate(rows)

    def _choose(self, rows: Float32, running: Sequence[_Sequence], step: int) -> None:
        edits = [self._options.edits(each.prompt, each.made) for each in running]
        drawing = self._drawing
        if drawing is not None:
            seeds = drawing.seeds[[each.number for each in running]]
            drawing = drawing._replace(seeds=seeds, step=step)
        began = perf_counter()
        chosen = self._head.choose(rows, edits, drawing)
        self.counts.head_s += perf_counter() - began
        self.counts.tokens += len(running)
        self.counts.scanned += int(chosen.scanned.sum())
        self.counts.proven += int(chosen.exact.sum())
        ids = chosen.ids.tolist()
        for each, token in zip(running, ids, strict=True):
            each.made.append(token)
        if self._options.logprobs:
            for each, log_prob in zip(running, self._head.log_probs(rows, ids), strict=True):
                each.log_probs.append(float(log_prob))

    def _text(self, sequence: _Sequence) -> str:
        token = sequence.made[-1]
        if self.context.ends(token):
            return ""
        text: str = sequence.held + sequence.utf8.decode(self.context.piece(token))
        cuts = [text.find(stop) for stop in self._options.stop if stop in text]
        if cuts:
            sequence.stopped, sequence.held = True, ""
            return text[: min(cuts)]
        begun = [
            size
            for stop in self._options.stop
            for size in range(1, len(stop))
            if text.endswith(stop[:size])
        ]
        shown = len(text) - max(begun, default=0)
        sequence.held = text[shown:]
        return text[:shown]

    def _shown(self, sequence: _Sequence, text: str, last: bool) -> Token:
        if last:
            text += sequence.held
        self.texts[sequence.number] += text
        return Token(sequence.number, sequence.made[-1], text)

    def _over(self, sequence: _Sequence) -> bool:
        ended = self.context.ends(sequence.made[-1]) and not self._options.ignore_end
        return ended or sequence.stopped


def _listed(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    nested = not isinstance(prompts, str) and any(hasattr(each, "__len__") for each in prompts)
    single = len(prompts) > 0 and not nested
    return [prompts] if single else prompts  # type: ignore[list-item, return-value]


def _tokens(context: LlamaContext, prompt: Prompt) -> list[int]:
    try:
        if isinstance(prompt, str):
            return context.tokenize(prompt)
    except InvalidRequest as error:
        raise InvalidRequest("prompts", error.got, error.allowed) from error
    if not prompt:
        raise InvalidRequest("prompts", "one of no tokens", "one token or more in each")
    return [whole("prompts", token, 0, context.gguf.vocab_size - 1) for token in prompt]
