"""Let a Decoder replace the output layer of a llama.cpp model.

llama.cpp stops before the output matrix, and the decoder chooses the next token of each sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, Unpack

import numpy as np

from logitsieve.api.decoder import Decoder
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.keywords import ModelSpec
from logitsieve.client.llamacpp_generation import Generation, Prompt, Token
from logitsieve.client.llamacpp_heads import DecoderOutput, DenseOutput, OutputHead
from logitsieve.client.llamacpp_sequences import Drafter, GenerationOptions, PromptLookup
from logitsieve.grammar import Grammars, TokenizerParts
from logitsieve.llamacpp import GgufModel, LlamaContext

__all__ = [
    "Generation", "GenerationOptions", "LlamaAttachment", "LlamaContext", "PromptLookup", "Token",
    "attach", "generate",
]  # fmt: skip

COMPARED, COMPARED_K = 4, 10  # random hidden states, and best ids of each


def attach(
    context: LlamaContext, decoder: Decoder | None, /, **spec: Unpack[ModelSpec]
) -> LlamaAttachment:
    """Let `decoder` replace the output layer of `context`, until `detach` or the end of `with`.

    `spec` are its keywords. Without a decoder, llama.cpp's own layer answers until a `swap`.

    InvalidRequest names `decoder` if its index is of another matrix, compared by hash in process
    and otherwise by logits of random hidden states. It names `context` if one is attached already.
    """
    if not isinstance(context, LlamaContext):
        kind = f"{type(context).__module__}.{type(context).__name__}"
        raise InvalidRequest("context", kind, "a LlamaContext of the same file")
    if context.headless:
        raise InvalidRequest("context", "one with a decoder attached", "one that was detached")
    head = DenseOutput() if decoder is None else _head(context.gguf, decoder, spec)
    return LlamaAttachment(context, head)


class LlamaAttachment:
    """A context and the `head` that chooses its tokens."""

    def __init__(self, context: LlamaContext, head: OutputHead) -> None:
        self.context, self.head = context, head
        self._attached, context.headless = True, head.headless

    def swap(self, decoder: Decoder, /, **spec: Unpack[ModelSpec]) -> None:
        """Let another decoder choose from the next token on; any thread may call this.

        It raises InvalidRequest as `attach` does.
        """
        self.head = _head(self.context.gguf, decoder, spec)

    def detach(self) -> None:
        """Restore the output layer; may be called again."""
        if self._attached:
            self._attached = self.context.headless = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.detach()

    def generate(
        self, prompts: Prompt | Sequence[Prompt], *, drafter: Drafter | None = None, **options: Any
    ) -> Generation:
        """Continue the prompts as `generate` does, by the decoder."""
        if not self._attached:
            raise InvalidRequest("generate", "a decoder that is detached", "one that is attached")
        return Generation(self.context, prompts, self, GenerationOptions(**options), drafter)


def generate(
    context: LlamaContext,
    prompts: Prompt | Sequence[Prompt],
    *,
    drafter: Drafter | None = None,
    **options: Any,
) -> Generation:
    """Continue prompts by llama.cpp's own output layer; iterate over the result for the tokens.

    `prompts` is a text, a list of token ids, or several of either, one per sequence. `options` are
    those of `GenerationOptions`. With one prompt, a `drafter` such as PromptLookup() may speed it
    up without changing a byte.
    """
    if context.headless:
        raise InvalidRequest("context", "one with a decoder attached", "attached.generate(...)")
    return LlamaAttachment(context, DenseOutput()).generate(prompts, drafter=drafter, **options)


def _head(gguf: GgufModel, decoder: Decoder, spec: ModelSpec) -> DecoderOutput:
    _refuse_another_matrix(gguf, decoder, spec)
    return DecoderOutput(decoder, spec, gguf.vocab_size, gguf.softcap)


def _refuse_another_matrix(gguf: GgufModel, decoder: Decoder, spec: ModelSpec) -> None:
    allowed = f"an index of {gguf.matrix.name} of {gguf.path} (logitsieve build --weight FILE.gguf)"
    index: Any = getattr(decoder, "index", None)
    if index is not None:
        if (index.vocab_size, index.dim) != gguf.matrix.shape:
            got = f"an index of [{index.vocab_size}, {index.dim}]"
            raise InvalidRequest("decoder", got, f"{list(gguf.matrix.shape)}: {allowed}")
        if index.manifest.softmax_sha256 != gguf.sha256(index.manifest.dtype):
            got = f"an index of another matrix ({index.manifest.dtype})"
            raise InvalidRequest("decoder", got, allowed)
        return
    hidden_states = np.random.default_rng(0).standard_normal((COMPARED, gguf.dim), np.float32)
    reply = decoder.topk(hidden_states, min(COMPARED_K, gguf.vocab_size), **spec)
    if int(reply.ids.max()) >= gguf.vocab_size:
        raise InvalidRequest("decoder", f"id {int(reply.ids.max())}", f"under {gguf.vocab_size}")
    for row, ids, logits in zip(hidden_states, reply.ids, reply.logits, strict=True):
        parts = gguf.matrix.rows(ids).astype(np.float64) * row
        bias = np.zeros(len(ids)) if gguf.bias is None else gguf.bias[ids].astype(np.float64)
        gap = np.abs(parts.sum(1) + bias - logits)
        if (gap > 2.0**-20 * (np.abs(parts).sum(1) + np.abs(bias))).any():
            got = f"logits up to {gap.max():.4g} away from the model's own"
            raise InvalidRequest("decoder", got, allowed)


MARK = "\x02"  # no tokenizer merges it with the next character


def grammars_of(context: LlamaContext) -> Grammars:
    """Make the compiler of grammars for a model's tokens, which takes a second."""
    every, special = range(context.gguf.vocab_size), context.special_tokens
    pieces = [context.piece(token, special=True) for token in every]
    spelled = {piece: token for token, piece in enumerate(pieces) if token not in special}
    longest = max(map(len, pieces))

    def ids(text: str) -> list[int]:
        return context.tokenize(text, begin=False, special=False)

    mark = ids(MARK)

    def tokenize(text: str) -> Sequence[int]:
        """Return ids that spell a text exactly, as some tokenizers put a space before it."""
        raw = text.encode()
        for before in (0, len(mark)):
            made = ids(MARK + text if before else text)
            made = made[before:] if made[:before] == mark[:before] else made
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
