"""Generation by llama.cpp: sequences are decoded together, one token of each at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import NamedTuple

import numpy as np

from logitsieve.api.checks import whole
from logitsieve.api.errors import InvalidRequest, naming
from logitsieve.api.results import Float32
from logitsieve.client.llamacpp_heads import HeadSlot
from logitsieve.client.llamacpp_sequences import (
    Continuation,
    Drafter,
    GenerationOptions,
    Speculation,
    choose,
)
from logitsieve.llamacpp import LlamaContext

Prompt = str | Sequence[int]


class Token(NamedTuple):
    """A decoded token and the text that it completes."""

    sequence: int
    id: int
    text: str  # "" at the end, within a character, or while it may become a `stop`


@dataclass
class GenerationCost:
    """The cost of a generation so far."""

    prompt_tokens: int = 0
    tokens: int = 0
    head_s: float = 0.0  # to choose tokens
    seconds: float = 0.0  # for all but the prompts
    prompt_s: float = 0.0
    scanned: int = 0  # exact logits computed
    proven: int = 0  # tokens proven to be the full softmax's choice
    drafted: int = 0  # tokens read before they were chosen
    accepted: int = 0  # drafted tokens that were then chosen


class Generation:
    """An iterator over the tokens of all sequences; `texts` and `counts` grow with it."""

    def __init__(
        self,
        context: LlamaContext,
        prompts: Prompt | Sequence[Prompt],
        slot: HeadSlot,
        options: GenerationOptions,
        drafter: Drafter | None = None,
    ) -> None:
        self.context, self.counts = context, GenerationCost()
        self._slot, self._head, self._options = slot, slot.head, options
        read = [_tokens(context, prompt) for prompt in _listed(prompts)]
        self._negative = _negative(context, read, options)
        every = read + self._negative
        if not 0 < len(every) <= context.sequences:
            allowed = f"1 to {context.sequences}, the context's sequences, with negative ones"
            raise InvalidRequest("prompts", f"{len(every)} prompts", allowed)
        longest, most = sum(map(len, every)), context.positions
        if context.separate:  # each sequence has its own part of the cache
            longest, most = max(map(len, every)), most // context.sequences
        if longest > most:
            allowed = f"{most} at most, the positions of the cache"
            raise InvalidRequest("prompts", f"{longest} tokens", allowed)
        allowed_ids = () if callable(options.allowed) else options.allowed or ()
        listed = {
            "banned": options.banned,
            "allowed": allowed_ids,
            "logit_bias": options.logit_bias,
        }
        for field_name, ids in listed.items():
            for token in ids:
                whole(field_name, token, 0, context.gguf.vocab_size - 1)
        drawing = options.drawing(len(read))
        self._sequences = [
            Continuation(
                context,
                number,
                tokens,
                options,
                drawing and drawing._replace(seeds=drawing.seeds[number : number + 1]),
            )
            for number, tokens in enumerate(read)
        ]
        if drafter is not None and len(every) > 1:
            allowed = "one prompt, without guidance"
            raise InvalidRequest("drafter", f"one for {len(every)} prompts", allowed)
        self._speculation = drafter and Speculation(context, self._sequences[0], drafter)
        self._log_probs: list[list[float]] = [[] for _ in read]
        self.texts = [""] * len(read)
        self._tokens = self._decoded()

    def __iter__(self) -> Iterator[Token]:
        return self._tokens

    def __next__(self) -> Token:
        return next(self._tokens)

    @property
    def ids(self) -> list[list[int]]:
        """The tokens of each sequence so far, without its prompt."""
        return [list(each.made) for each in self._sequences]

    @property
    def log_probs(self) -> list[list[float]]:
        """The tokens' log-probabilities, if `logprobs` is set."""
        return [list(each) for each in self._log_probs]

    def _decoded(self) -> Iterator[Token]:
        self._take_head()
        rows, running = self._read_prompts(), self._sequences
        for step in range(self._options.max_tokens):
            began = perf_counter()
            texts = self._choose(rows, running)
            self.counts.seconds += perf_counter() - began
            goes_on = step + 1 < self._options.max_tokens
            fitting = self._fitting(running) if goes_on else []
            for each, text in zip(running, texts, strict=True):
                yield self._shown(each, text, last=each.number not in fitting)
            running = [each for each in running if each.number in fitting]
            if not running:
                return
            self._take_head()
            began = perf_counter()
            rows = self._next_rows(running)
            self.counts.seconds += perf_counter() - began

    def _fitting(self, running: Sequence[Continuation]) -> list[int]:
        left = [each.number for each in running if not each.over]
        fitting = {*self.context.fitting(self._with_negative(left))}
        return [number for number in left if fitting.issuperset(self._with_negative([number]))]

    def _next_rows(self, running: Sequence[Continuation]) -> Float32:
        row = None
        if self._speculation is not None:
            row = self._speculation.row()
            self.counts.drafted = self._speculation.drafted
            self.counts.accepted = self._speculation.accepted
        if row is not None:
            return row
        chosen = [each.made[-1] for each in running]
        numbers = self._with_negative([each.number for each in running])
        pairs = zip(numbers, chosen * (len(numbers) // len(chosen)), strict=True)
        return self._guided(self.context.step(dict(pairs)))

    def _with_negative(self, numbers: list[int]) -> list[int]:
        first = len(self._sequences)
        return numbers + [first + number for number in numbers if self._negative]

    def _guided(self, rows: Float32) -> Float32:
        """Combine rows of prompts and of negative prompts, [2 B, .]; output layers are linear."""
        if not self._negative:
            return rows
        given, negative = np.split(rows, 2)
        return negative + np.float32(self._options.guidance_scale) * (given - negative)

    def _take_head(self) -> None:
        if self.context.headless != self._head.headless:
            raise InvalidRequest("context", "attached or detached meanwhile", "as it was begun")
        self._head = self._slot.head
        self.context.headless = self._head.headless

    def _read_prompts(self) -> Float32:
        began = perf_counter()
        self.context.forget()
        every = [*(each.prompt for each in self._sequences), *self._negative]
        rows = [self.context.read(prompt, number) for number, prompt in enumerate(every)]
        self.counts.prompt_tokens = sum(map(len, every))
        self.counts.prompt_s = perf_counter() - began
        return self._guided(np.concatenate(rows))

    def _choose(self, rows: Float32, running: Sequence[Continuation]) -> list[str]:
        began = perf_counter()
        chosen = choose(self._head, rows, running)
        self.counts.head_s += perf_counter() - began
        self.counts.tokens += len(running)
        self.counts.scanned += int(chosen.scanned.sum())
        self.counts.proven += int(chosen.proven.sum())
        ids = chosen.ids.tolist()
        if self._options.logprobs:
            scores = self._head.scores(rows, ids, 0).log_probs
            for each, log_prob in zip(running, scores.tolist(), strict=True):
                self._log_probs[each.number].append(log_prob)
        return [each.take(token) for each, token in zip(running, ids, strict=True)]

    def _shown(self, sequence: Continuation, text: str, last: bool) -> Token:
        if last:
            text += sequence.rest()
        self.texts[sequence.number] += text
        return Token(sequence.number, sequence.made[-1], text)


def _listed(prompts: Prompt | Sequence[Prompt]) -> Sequence[Prompt]:
    nested = not isinstance(prompts, str) and any(hasattr(each, "__len__") for each in prompts)
    single = len(prompts) > 0 and not nested
    return [prompts] if single else prompts  # type: ignore[list-item, return-value]


def _negative(
    context: LlamaContext, prompts: list[list[int]], options: GenerationOptions
) -> list[list[int]]:
    if options.guidance_scale == 1:
        return []
    if context.gguf.softcap is not None:
        allowed = "1 where the model caps its logits (final_logit_softcapping)"
        raise InvalidRequest("guidance_scale", options.guidance_scale, allowed)
    if options.negative_prompt is None:
        return [prompt[-1:] for prompt in prompts]
    return [_tokens(context, options.negative_prompt, "negative_prompt")] * len(prompts)


def _tokens(context: LlamaContext, prompt: Prompt, field: str = "prompts") -> list[int]:
    if isinstance(prompt, str):
        with naming(field):
            return context.tokenize(prompt, most=context.longest_text)
    if not prompt:
        raise InvalidRequest(field, "one of no tokens", "one token or more in each")
    return [whole(field, token, 0, context.gguf.vocab_size - 1) for token in prompt]
