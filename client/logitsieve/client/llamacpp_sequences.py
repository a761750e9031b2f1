"""A sequence that a head continues: its options, its tokens and text, and drafts of its tokens."""

import codecs
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from logitsieve.api.checks import STRONGEST, number, whole
from logitsieve.api.constraints import WIDEST_PENALTY
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.requests import MOST_STEPS, Sampling
from logitsieve.api.results import Float32
from logitsieve.api.watermark import WatermarkKey
from logitsieve.client.llamacpp_heads import Chosen, OutputHead, RowEdits
from logitsieve.grammar.matcher import Matcher
from logitsieve.llamacpp import LlamaContext

WIDEST_EDIT = 1e6  # larger penalties or biases soon make infinite logits in float32


@dataclass(frozen=True, kw_only=True)
class GenerationOptions:
    """Options of a generation; InvalidRequest for a value out of range.

    Temperature 0 is greedy; filters and `seeds` work as in `Decoder.sample`. Penalties apply to the
    last `penalized` tokens, with `penalize_prompt` also to the prompt's. They divide a positive
    logit by `repetition_penalty`, multiply a negative one by it, and subtract `presence_penalty`
    and, for each occurrence, `frequency_penalty`.

    `allowed` lists ids, or is a function from a sequence's tokens without its prompt to such a
    list. `grammar` makes a matcher for each sequence, such as `Grammar.matcher`. A sequence ends
    where its matcher allows only an end, or before any text in `stop`; with `ignore_end` it goes on
    after the model's end. `logprobs` are of the full softmax, before edits. A `watermark` key can
    detect the draws that it made. A `guidance_scale` s other than 1 replaces logits x by
    s x - (s - 1) y, where y are the logits after `negative_prompt`, by default the prompt's last
    token.
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
    penalize_prompt: bool = True
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    banned: Sequence[int] = ()
    allowed: Sequence[int] | Callable[[Sequence[int]], Sequence[int]] | None = None
    grammar: Callable[[], Matcher] | None = None
    stop: Sequence[str] = ()
    logprobs: bool = False
    ignore_end: bool = False
    watermark: WatermarkKey | None = None
    guidance_scale: float = 1.0
    negative_prompt: str | Sequence[int] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.stop, str) or not all(isinstance(e, str) and e for e in self.stop):
            raise InvalidRequest("stop", repr(self.stop), "a list of texts, none of them empty")
        whole("max_tokens", self.max_tokens, 1, MOST_STEPS - 1)
        whole("penalized", self.penalized, 0, 1 << 30)
        for name in ("presence_penalty", "frequency_penalty"):
            number(name, getattr(self, name), -WIDEST_EDIT, WIDEST_EDIT)
        number("guidance_scale", self.guidance_scale, -STRONGEST, STRONGEST)
        if self.negative_prompt is not None and self.guidance_scale == 1:
            raise InvalidRequest("negative_prompt", "one", "none where guidance_scale is 1")
        penalty = self.repetition_penalty
        number("repetition_penalty", penalty, 1 / WIDEST_PENALTY, WIDEST_PENALTY)
        for token, bias in self.logit_bias.items():
            number(f"logit_bias.{token!a:.80}", bias, -WIDEST_EDIT, WIDEST_EDIT)

    def drawing(self, sequences: int) -> Sampling | None:
        """Return the options of the first draws; None if greedy."""
        options: Any = {name: vars(self)[name] for name in Sampling._fields if name in vars(self)}
        checked = Sampling.of(sequences, 1, options)
        return checked if checked.temperature > 0 else None

    def edits(self, prompt: Sequence[int], made: Sequence[int]) -> RowEdits:
        counts: dict[int, int] = {}
        text = [*prompt, *made] if self.penalize_prompt else made
        for token in text[-self.penalized :] if self.penalized else []:
            counts[token] = counts.get(token, 0) + 1
        bias = dict(self.logit_bias)
        if self.presence_penalty or self.frequency_penalty:
            for token, count in counts.items():
                fall = self.presence_penalty + count * self.frequency_penalty
                bias[token] = bias.get(token, 0.0) - fall
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


@dataclass
class Continuation:
    """A prompt in sequence `number` of a context, and its continuation."""

    context: LlamaContext
    number: int
    prompt: Sequence[int]
    options: GenerationOptions
    drawing: Sampling | None  # of one row; None if greedy
    made: list[int] = field(default_factory=list)
    stopped: bool = False  # by a text of `stop`
    _held: str = ""  # text that may begin a `stop`
    _utf8: Any = field(default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace"))

    def __post_init__(self) -> None:
        self.matcher = None if self.options.grammar is None else self.options.grammar()

    @property
    def over(self) -> bool:
        ended = bool(self.made) and self.context.ends(self.made[-1])
        return self.stopped or (ended and not self.options.ignore_end)

    def edits(self) -> RowEdits:
        """Return the edits for the next token; the model's suppressed ones are banned."""
        made = self.options.edits(self.prompt, self.made)
        suppressed = self.context.gguf.suppressed
        banned = (*made.banned, *suppressed) if suppressed else made.banned
        return replace(made, banned=banned, matcher=self.matcher)

    def next_draw(self) -> Sampling | None:
        drawing, key = self.drawing, self.options.watermark
        if drawing is None or key is None:
            return drawing and drawing._replace(step=len(self.made))
        return drawing._replace(seeds=key.seeds([self.made], drawing.seeds))

    def take(self, token: int) -> str:
        """Append a token; return new text, without what may begin a `stop`."""
        self.made.append(token)
        if self.matcher is not None:
            self.matcher.accept(token)
        if self.context.ends(token):
            return ""
        text: str = self._held + self._utf8.decode(self.context.piece(token))
        cuts = [text.find(stop) for stop in self.options.stop if stop in text]
        if cuts:
            self.stopped, self._held = True, ""
            return text[: min(cuts)]
        begun = [
            size
            for stop in self.options.stop
            for size in range(1, len(stop))
            if text.endswith(stop[:size])
        ]
        shown = len(text) - max(begun, default=0)
        self._held = text[shown:]
        return text[:shown]

    def rest(self) -> str:
        """Return the text held back at the end; U+FFFD stands for an incomplete character."""
        held, self._held = self._held + self._utf8.decode(b"", final=True), ""
        return "" if self.stopped else held


def choose(head: OutputHead, rows: Float32, each: Sequence[Continuation]) -> Chosen:
    """Choose a token for each row, with one call of the head for all rows with equal settings."""
    draws = [one.next_draw() for one in each]
    groups: dict[Any, list[int]] = {}
    for place, (one, drawing) in enumerate(zip(each, draws, strict=True)):
        # In one call, rows share the penalty, step, temperature and filters, and all or none have
        # allow lists.
        settings, grammar = drawing and drawing[2:], one.matcher is None
        alike = one.options.repetition_penalty, one.options.allowed is None, settings, grammar
        groups.setdefault(alike, []).append(place)
    ids, scanned = np.empty((2, len(each)), np.int32)
    proven = np.empty(len(each), np.bool_)
    for places in groups.values():
        some = slice(None) if len(groups) == 1 else places
        edits = [each[place].edits() for place in places]
        drawing = draws[places[0]]
        if drawing is not None:
            drawn = (draws[place] for place in places)
            seeds = np.concatenate([one.seeds for one in drawn if one is not None])
            drawing = drawing._replace(seeds=seeds)
        ids[some], scanned[some], proven[some] = head.choose(rows[some], edits, drawing)
    return Chosen(ids, scanned, proven)


# (text, how many of its last tokens must match, most ids) -> ids that may follow
Drafter = Callable[[Sequence[int], int, int], Sequence[int]]

SHORTEST, LONGEST = 3, 24  # tokens that must match
MOST_DRAFTS, MOST_FORCED = 2, 8  # ids


class PromptLookup:
    """Drafts the tokens that followed an earlier occurrence of a text's last tokens."""

    def __init__(self) -> None:
        self._after: dict[tuple[int, ...], int] = {}  # SHORTEST ids -> the place after them
        self._seen = SHORTEST

    def __call__(self, text: Sequence[int], trusted: int, most: int) -> Sequence[int]:
        """Return up to `most` ids; none unless the last `trusted` tokens occurred before."""
        for end in range(self._seen, len(text)):
            self._after[tuple(text[end - SHORTEST : end])] = end
        self._seen = max(self._seen, len(text))
        end = self._after.get(tuple(text[-SHORTEST:]), 0)
        if end < trusted or text[end - trusted : end] != text[-trusted:]:
            return []
        return text[end : end + most]


class Speculation:
    """Reads drafts of a sequence's next tokens, which its grammar forces or its drafter guesses.

    After a correct draft it guesses one id more; after a mostly wrong one it requires a match twice
    as long.
    """

    def __init__(self, context: LlamaContext, one: Continuation, drafter: Drafter) -> None:
        self._context, self._one, self._drafter = context, one, drafter
        self._text = list(one.prompt)
        self._drafts: list[int] = []  # read but not yet chosen
        self._rows: Float32  # [drafts, .] their outputs
        self._headless = False
        self._read = 0  # number of drafts in the last `look_ahead`
        self._most, self._trusted = 1, SHORTEST
        self.drafted = self.accepted = 0  # tokens

    def row(self) -> Float32 | None:
        """Return the output [1, .] after the newest token, or None without drafts."""
        token, headless = self._one.made[-1], self._context.headless
        self._text.append(token)
        if self._drafts and (token, headless) == (self._drafts[0], self._headless):
            self._context.accept(self._one.number)
            self.accepted += 1
            return self._next()
        self._learn()
        left = max(0, self._one.options.max_tokens - len(self._one.made) - 1)
        most = min(self._most, left)
        drafts = self._forced()[:left]
        if not drafts and most > 0:
            drafts = list(self._drafter(self._text, self._trusted, most))[:most]
        if not drafts:
            return None
        self._rows = self._context.look_ahead([token, *drafts], self._one.number)
        self._drafts, self._headless = [token, *drafts[: len(self._rows) - 1]], headless
        self._read = len(self._rows) - 1
        self.drafted += self._read
        return self._next()

    def _forced(self) -> list[int]:
        """Return the ids that a grammar forces next, except ends."""
        if self._one.matcher is None:
            return []
        forced = self._one.matcher.forced()[:MOST_FORCED]
        return [one for one in forced if not self._context.ends(one)]

    def _next(self) -> Float32:
        row, self._rows, self._drafts = self._rows[:1], self._rows[1:], self._drafts[1:]
        return row

    def _learn(self) -> None:
        wrong = len(self._drafts)
        if self._read and not wrong:
            self._most = min(self._most + 1, MOST_DRAFTS)
            self._trusted = max(self._trusted // 2, SHORTEST)
        elif wrong:
            self._most = max(1, self._read - wrong)
            if 2 * wrong > self._read:
                self._trusted = min(2 * self._trusted, LONGEST)
        self._read, self._drafts = 0, []
