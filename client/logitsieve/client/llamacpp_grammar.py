"""Grammars over the tokens of a GGUF model."""

from collections.abc import Sequence

from logitsieve.grammar import Grammars, TokenizerParts
from logitsieve.llamacpp import LlamaContext

MARK = "\x02"  # no tokenizer joins it with what follows


def grammars_of(context: LlamaContext) -> Grammars:
    """Return the compiler of grammars for a model's tokens, which takes a second to make."""
    every, special = range(context.gguf.vocab_size), context.special_tokens
    pieces = [context.piece(token, special=True) for token in every]
    spelled = {piece: token for token, piece in enumerate(pieces) if token not in special}
    longest = max(map(len, pieces))

    def ids(text: str) -> list[int]:
        return context.tokenize(text, begin=False, special=False)

    def tokenize(text: str) -> Sequence[int]:
        """Return ids that spell a text exactly: some tokenizers put a space before it."""
        raw, mark = text.encode(), ids(MARK)
        for made in (ids(text), ids(MARK + text)):
            made = made[len(mark) :] if made[: len(mark)] == mark else made
            if b"".join(pieces[token] for token in made) == raw:
                return made
        return longest_first(raw)

    def longest_first(raw: bytes) -> list[int]:
        made = []
        while raw:
            sizes = range(min(longest, len(raw)), 0, -1)
            token = next((spelled[raw[:size]] for size in sizes if raw[:size] in spelled), None)
            if token is None:
                break
            made.append(token)
            raw = raw[len(pieces[token]) :]
        return made

    ends = [token for token in every if context.ends(token)]
    parts = TokenizerParts(pieces=pieces, special=special, ends=ends, tokenize=tokenize)
    return Grammars(parts)
