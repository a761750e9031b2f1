"""Count the tokens that differ from the float64 argmax over the stored matrix, by kind of text.

llama.cpp's own choice is judged too: it reads the same text again, in the same batches, with its
output layer, whose product rounds h.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from benchmarks.llamacpp.contenders import HEADS, PEER, heads_of
from benchmarks.published.contexts import asked, prompts, stretches, windows
from benchmarks.raw import GRADED
from demo.truth import argmax
from logitsieve.api.results import Float32, Int64
from logitsieve.client.llamacpp import LlamaContext
from logitsieve.client.llamacpp_heads import UNEDITED, DecoderOutput, OutputHead
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from logitsieve.index_builder.capture.llamacpp import read_stretches

AT_ONCE = 8  # texts, and contexts of a call
LENGTH, BEGINNING = 120, 24  # tokens of a greedy text, and those before it
Counts: TypeAlias = defaultdict[str, Counter[str]]  # by contender: `tokens`, `wrong`, `proven`


def judge(
    gguf: Path, index: Path, tokens: int, kinds: Sequence[str], threads: int
) -> dict[str, Counts]:
    """The counts of each kind; `wrong` tokens differ from the float64 argmax."""
    decoder = LocalDecoder(open_index(index, threads=threads))
    judged = {kind: Counts(Counter) for kind in kinds}
    with LlamaContext(gguf, positions=512, threads=threads) as context:
        for kind, found in judged.items():
            texts = stretches(context, kind, gguf.parents[1], tokens)
            for start in range(0, len(texts), AT_ONCE):
                part = texts[start : start + AT_ONCE]
                hidden_states = read_stretches(context, part)
                best = argmax(context.gguf.matrix, hidden_states)
                chosen = [
                    read_stretches(context, [text], headless=False).argmax(1) for text in part
                ]
                count(found, PEER, np.concatenate(chosen) == best, np.zeros(len(best)))
                count_heads(found, decoder, hidden_states, best)
                print(kind, dict(found), flush=True)
    return judged


def judge_greedy(
    gguf: Path, index: Path, tokens: int, kinds: Sequence[str], threads: int
) -> dict[str, Counts]:
    """The same for about `tokens` greedy tokens of each kind, which the model writes itself.

    AT_ONCE texts are decoded together, by the default grade, from their beginnings; every grade
    answers the same rows of hidden_states. Chat has LENGTH tokens of each prompt, and no more.
    """
    decoder = LocalDecoder(open_index(index, threads=threads))
    judged = {f"greedy {kind}": Counts(Counter) for kind in kinds}
    room = AT_ONCE * 2 * LENGTH
    with LlamaContext(gguf, sequences=AT_ONCE, positions=room, threads=threads) as context:
        context.headless = True
        head = DecoderOutput(decoder, {"head": "sketch"}, context.gguf.vocab_size, None)
        for kind, found in zip(kinds, judged.values(), strict=True):
            texts = beginnings(context, kind, gguf.parents[1], -(-tokens // LENGTH))
            for start in range(0, len(texts), AT_ONCE):
                hidden_states = greedy(context, head, texts[start : start + AT_ONCE])
                best = argmax(context.gguf.matrix, hidden_states)
                count_heads(found, decoder, hidden_states, best, GRADED)
                print(f"greedy {kind}", dict(found), flush=True)
    return judged


def beginnings(context: LlamaContext, kind: str, cache: Path, count: int) -> list[list[int]]:
    """The first tokens of `count` texts of a kind; of chat its prompts."""
    if kind == "chat":
        asked_for = [context.tokenize(asked(context, prompt)) for prompt in prompts()]
        return [tokens for tokens in asked_for[:count] if len(tokens) <= LENGTH]
    return [tokens[:BEGINNING] for tokens, _ in windows(context, kind, cache, count)]


def greedy(context: LlamaContext, head: OutputHead, texts: Sequence[list[int]]) -> Float32:
    """Continue texts together by LENGTH tokens each, past any end; return hidden_states [N, D]."""
    context.forget()
    rows = np.concatenate([context.read(text, place) for place, text in enumerate(texts)])
    kept = []
    for _ in range(LENGTH):
        kept.append(rows)
        chosen = head.choose(rows, [UNEDITED] * len(rows), None).ids.tolist()
        rows = context.step(dict(enumerate(chosen)))
    return np.concatenate(kept)


def count_heads(
    found: Counts,
    decoder: LocalDecoder,
    hidden_states: Float32,
    best: Int64,
    names: Collection[str] = HEADS,
) -> None:
    """Count the answers of each head, right if it is so one context a call and AT_ONCE a call."""
    for name, spec in heads_of(decoder).items():
        if name not in names:
            continue
        right, proven = np.ones(len(best), np.bool_), np.ones(len(best), np.bool_)
        for size in (1, AT_ONCE):
            for start in range(0, len(best), size):
                part = slice(start, start + size)
                top = decoder.topk(hidden_states[part], 1, **spec)
                right[part] &= top.ids[:, 0] == best[part]
                proven[part] &= top.answer.proven
        count(found, name, right, proven)


def count(found: Counts, name: str, right: np.ndarray, proven: np.ndarray) -> None:
    counted = {"tokens": len(right), "wrong": int((~right).sum()), "proven": int(proven.sum())}
    found[name].update(counted)
