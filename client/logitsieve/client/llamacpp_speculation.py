"""Speculation that changes no byte: llama.cpp reads drafts, and only the head chooses tokens.

The head chooses as without drafts, by the same row, edits, seed and step. A draft that equals its
choice saves a decode; from the first other one, all are dropped ("drafter-invariant", Daliri et
al., arXiv:2408.07978).
"""

from collections.abc import Callable, Sequence

from logitsieve.api.results import Float32
from logitsieve.client.llamacpp_sequences import Continuation
from logitsieve.llamacpp import LlamaContext

# (a text, how many last tokens must occur earlier, a limit) -> ids that may follow
Drafter = Callable[[Sequence[int], int, int], Sequence[int]]

SHORTEST, LONGEST = 3, 24  # tokens that must occur earlier
MOST_DRAFTS = 2  # ids


class PromptLookup:
    """Drafts the tokens that followed the last ones of a text earlier in it."""

    def __init__(self) -> None:
        self._after: dict[tuple[int, ...], int] = {}  # SHORTEST ids -> the place behind them
        self._seen = SHORTEST

    def __call__(self, text: Sequence[int], trusted: int, most: int) -> Sequence[int]:
        """Return up to `most` ids; none if the last `trusted` tokens are new."""
        for end in range(self._seen, len(text)):
            self._after[tuple(text[end - SHORTEST : end])] = end
        self._seen = max(self._seen, len(text))
        end = self._after.get(tuple(text[-SHORTEST:]), 0)
        if end < trusted or text[end - trusted : end] != text[-trusted:]:
            return []
        return text[end : end + most]


class Speculation:
    """Reads drafts of a sequence's next tokens: one more id after each draft that was right.

    After a mostly wrong one, the next needs twice as long a match with the text.
    """

    def __init__(self, context: LlamaContext, one: Continuation, drafter: Drafter) -> None:
        self._context, self._one, self._drafter = context, one, drafter
        self._text = list(one.prompt)
        self._drafts: list[int] = []  # read, not chosen yet
        self._rows: Float32  # [drafts, .] behind them
        self._headless = False
        self._read = 0  # drafts of the last `look_ahead`
        self._most, self._trusted = 1, SHORTEST
        self.drafted = self.accepted = 0  # tokens

    def row(self) -> Float32 | None:
        """Return the row [1, .] behind the newest token; None without drafts."""
        token, headless = self._one.made[-1], self._context.headless
        self._text.append(token)
        if self._drafts and (token, headless) == (self._drafts[0], self._headless):
            self._context.accept(self._one.number)
            self.accepted += 1
            return self._next()
        self._learn()
        most = min(self._most, self._one.options.max_tokens - len(self._one.made) - 1)
        drafts = list(self._drafter(self._text, self._trusted, most))[:most] if most > 0 else []
        if not drafts:
            return None
        self._rows = self._context.look_ahead([token, *drafts], self._one.number)
        self._drafts, self._headless = [token, *drafts[: len(self._rows) - 1]], headless
        self._read = len(self._rows) - 1
        self.drafted += self._read
        return self._next()

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
