"""Greedy and beam search: the LSTM runs here, and a Decoder names the next words.

Shape letters: B rows of the LSTM, D hidden size, T words read at once.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from demo.lstm import Lstm, State
from logitsieve.api.decoder import Decoder
from logitsieve.api.results import Float32, Int32
from logitsieve.client.beam_search import beam_search
from logitsieve.training.vocabulary import END, Vocabulary

HEADS = ("full", "sketch", "screen", "svd", "lsh")

# Spacing around punctuation, applied in order to text with spaces between all tokens.
JOINS = (
    (re.compile(r" ?<eos> ?"), "\n"),
    (re.compile(r"(?<=\bN) \. (?=N\b)"), "."),
    (re.compile(r"(?<=[_-]) (?=[_-])"), ""),
    (re.compile(r"__ (\w+) __"), r"__\1__"),
    (re.compile(r"-- (?=\w)"), "--"),
    (re.compile(r"(?<=[\w>]) ([_\u2019/-]) (?=[\w<])"), r"\1"),
    (re.compile(r" \( \)"), "()"),
    (re.compile(r" \. (?=\w+\(\))"), "."),
    (re.compile(r"([(\[{“]) "), r"\1"),
    (re.compile(r" ([.,;:?!%)\]}”])"), r"\1"),
)


def readable(words: Iterable[str]) -> str:
    """Join words: `<eos>` is a line break, and punctuation is joined to its word."""
    text = " ".join(words)
    for pattern, replacement in JOINS:
        text = pattern.sub(replacement, text)
    return text


class Reader:
    """The language model's state after some words, a row for each text."""

    def __init__(self, model: Lstm) -> None:
        self._model = model
        self._state: State | None = None

    def read(self, words: Sequence[Sequence[int]]) -> Float32:
        """Read T more words in each row; hidden_states [B, D] then predicts the next."""
        hidden_BTD, self._state = self._model.hidden_states(words, self._state)
        return np.asarray(hidden_BTD[:, -1])

    def step(self, parents: Int32, tokens: Int32) -> Float32:
        """Continue row parents[r] by tokens[r] as row r, for `beam_search`."""
        assert self._state is not None
        self._state = [
            (hidden_states[parents], cell[parents]) for hidden_states, cell in self._state
        ]
        return self.read(tokens[:, None].tolist())


@dataclass(frozen=True)
class Completion:
    """A prompt, and its completion by each of HEADS."""

    prompt: str
    search: str
    by_head: dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Writer:
    """Completes text with the model `label` of `decoder`, in at most `words` words."""

    model: Lstm
    vocabulary: Vocabulary
    decoder: Decoder
    label: str
    words: int

    def compare(self, prompts: Sequence[str], beams: int) -> Iterator[Completion]:
        """Yield each prompt by greedy search, then by beam search, with every head."""
        for prompt in prompts:
            ids = self.vocabulary.encode(prompt)
            shown = self._text(ids)
            for search, complete in (
                ("greedy", self._greedy),
                (f"beam {beams}", lambda ids, head: self._beams(ids, head, beams)),
            ):
                by_head = {head: self._text(complete(ids, head)) for head in HEADS}
                yield Completion(shown, search, by_head)

    def _greedy(self, prompt: Sequence[int], head: str) -> Sequence[int]:
        """Return the best words, one after the other, up to the end of the paragraph."""
        reader, ids = Reader(self.model), list[int]()
        hidden_BD = reader.read([prompt])
        while len(ids) < self.words and self._end not in ids:
            reply = self.decoder.topk(hidden_BD, 1, model=self.label, head=head)
            ids.append(int(reply.ids[0, 0]))
            hidden_BD = reader.read([ids[-1:]])
        return ids

    def _beams(self, prompt: Sequence[int], head: str, beams: int) -> Sequence[int]:
        """Return the likeliest completion, scored with the exact log Z for every head."""
        reader = Reader(self.model)
        result = beam_search(
            self.decoder,
            reader.read([prompt]),
            reader.step,
            num_beams=beams,
            eos_ids=[self._end],
            max_tokens=self.words,
            length_penalty=0.0,
            model=self.label,
            head=head,
            normalizer="full",
        )
        return result.hypotheses[0][0].tokens

    @property
    def _end(self) -> int:
        [end] = self.vocabulary.encode(END)
        return end

    def _text(self, ids: Sequence[int]) -> str:
        return readable(self.vocabulary.words[number] for number in ids).rstrip("\n")
