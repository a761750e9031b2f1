"""Greedy and beam search: the LSTM runs here, and a Decoder, wherever it is, names the next words.

The beam is the one of papers/001, section 4.2: a hypothesis counts by the sum of its words'
log-probabilities. A finished one keeps its place until better ones push it out.

Shape letters: B live hypotheses, D hidden size, K answers a row, T words read at once.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from heapq import nlargest

import torch

from logitsieve.api.decoder import Decoder
from logitsieve.api.results import Float32, TopKReply
from logitsieve.training.trainer import LanguageModel, Vocabulary
from logitsieve.training.trainer.language_model import State
from logitsieve.training.trainer.vocabulary import END

HEADS = ("exact", "screen")

NextWords = Callable[[Float32, int], TopKReply]
"""(hidden [B, D], k) to the k best words of each row; `beam_search` needs log Z with them."""


@dataclass(frozen=True)
class Hypothesis:
    """A completion so far, and the log-probability of its words."""

    ids: tuple[int, ...] = ()
    log_prob: float = 0.0
    row: int = 0  # of the LSTM's state that it continues


def greedy(
    model: LanguageModel, next_words: NextWords, prompt: Sequence[int], end: int, words: int
) -> tuple[int, ...]:
    """The best word after `prompt`, then the best after that: `words` of them, or up to `end`."""
    ids: list[int] = []
    hidden_BD, state = read(model, [prompt])
    while True:
        ids.append(int(next_words(hidden_BD, 1).ids[0, 0]))
        if ids[-1] == end or len(ids) == words:
            return tuple(ids)
        hidden_BD, state = read(model, [ids[-1:]], state)


def beam_search(
    model: LanguageModel,
    next_words: NextWords,
    prompt: Sequence[int],
    end: int,
    words: int,
    beams: int,
) -> list[Hypothesis]:
    """The `beams` likeliest completions found, the best first, each as long as `greedy` allows."""
    live, finished = [Hypothesis()], list[Hypothesis]()
    hidden_BD, state = read(model, [prompt])
    while True:
        longer = expand(live, next_words(hidden_BD, beams))
        ranked = nlargest(beams, [*finished, *longer], key=lambda found: found.log_prob)
        finished = [found for found in ranked if found.ids[-1] == end]
        live = [found for found in ranked if found.ids[-1] != end]
        if not live or len(live[0].ids) == words:
            return ranked
        state = rows_of(state, [found.row for found in live])
        hidden_BD, state = read(model, [found.ids[-1:] for found in live], state)


def expand(live: Sequence[Hypothesis], reply: TopKReply) -> list[Hypothesis]:
    """Every live hypothesis with each of the K words answered for its row: B K of them."""
    words_BK, log_probs_BK = reply.ids.tolist(), reply.log_probs().tolist()
    return [
        Hypothesis((*found.ids, word), found.log_prob + log_prob, row)
        for row, found in enumerate(live)
        for word, log_prob in zip(words_BK[row], log_probs_BK[row], strict=True)
    ]


@torch.inference_mode()
def read(
    model: LanguageModel, ids: Sequence[Sequence[int]], state: State | None = None
) -> tuple[Float32, State]:
    """T words for each of B rows to the last word's hidden states [B, D], and the state after."""
    hidden_BTD, state = model.hidden(torch.tensor(ids), state)
    return hidden_BTD[:, -1].numpy(), state


def rows_of(state: State, rows: Sequence[int]) -> State:
    """The state of the given rows, in that order."""
    hidden_LBD, cell_LBD = state
    return hidden_LBD[:, rows].contiguous(), cell_LBD[:, rows].contiguous()


@dataclass(frozen=True)
class Completion:
    """What two heads made of one prompt."""

    prompt: str
    search: str
    exact: str
    screen: str


@dataclass(frozen=True, kw_only=True)
class Writer:
    """Completes text with the model `label` of `decoder`, in at most `words` words."""

    model: LanguageModel
    vocabulary: Vocabulary
    decoder: Decoder
    label: str
    words: int

    def compare(self, prompts: Sequence[str], beams: int) -> Iterator[Completion]:
        """Each prompt by greedy search, then by beam search, with both heads."""
        for prompt in prompts:
            shown = self._text(self._ids(prompt))
            greedily = (self.greedily(prompt, head) for head in HEADS)
            yield Completion(shown, "greedy", *greedily)
            by_beams = (self.by_beams(prompt, head, beams) for head in HEADS)
            yield Completion(shown, f"beam {beams}", *by_beams)

    def greedily(self, prompt: str, head: str) -> str:
        """The greedy completion."""
        next_words = partial(self.decoder.topk, model=self.label, head=head)
        return self._text(greedy(self.model, next_words, self._ids(prompt), self._end, self.words))

    def by_beams(self, prompt: str, head: str, beams: int) -> str:
        """The likeliest completion; log-probabilities are relative to the head's candidates."""
        next_words = partial(
            self.decoder.topk, model=self.label, head=head, normalizer="candidates"
        )
        best, *_ = beam_search(
            self.model, next_words, self._ids(prompt), self._end, self.words, beams
        )
        return self._text(best.ids)

    @property
    def _end(self) -> int:
        return self._ids(END)[0]

    def _ids(self, text: str) -> list[int]:
        return self.vocabulary.encode(text)

    def _text(self, ids: Sequence[int]) -> str:
        return self.vocabulary.decode(ids).rstrip("\n")
