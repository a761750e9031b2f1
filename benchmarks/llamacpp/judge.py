"""Count the tokens that differ from the float64 argmax over the stored matrix, by kind of text.

llama.cpp's own choice is judged too: it reads the same text again, in the same batches, with its
output layer, whose product rounds h.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np

from benchmarks.llamacpp.contenders import PEER, heads_of
from benchmarks.published.contexts import stretches
from demo.truth import argmax
from logitsieve.client.llamacpp import LlamaContext
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from logitsieve.index_builder.capture.llamacpp import read_stretches
from logitsieve.llamacpp.model_file import GgufModel

AT_ONCE, CONTEXTS = 8, 1024  # texts, contexts
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
                hidden = read_stretches(context, part)
                best = argmax(context.gguf.matrix, hidden)
                chosen = [
                    read_stretches(context, [text], headless=False).argmax(1) for text in part
                ]
                count(found, PEER, np.concatenate(chosen) == best, np.zeros(len(best)))
                count_heads(found, decoder, hidden, best)
                print(kind, dict(found), flush=True)
    return judged


def judge_captured(gguf: Path, index: Path, threads: int) -> dict[str, Counts]:
    """Judge our heads on every captured context, also those of the fit; llama.cpp is left out."""
    decoder, matrix = LocalDecoder(open_index(index, threads=threads)), GgufModel(gguf).matrix
    found = Counts(Counter)
    for file in sorted(gguf.parent.glob("*.npy")):
        contexts = np.load(file).astype(np.float32)
        best = argmax(matrix, contexts)
        for start in range(0, len(contexts), CONTEXTS):
            part = slice(start, start + CONTEXTS)
            count_heads(found, decoder, contexts[part], best[part])
            print(file.stem, dict(found), flush=True)
    return {"captured contexts": found}


def count_heads(found: Counts, decoder: LocalDecoder, hidden: np.ndarray, best: np.ndarray) -> None:
    """Count the answers of each head, asked for one context a call."""
    for name, target in heads_of(decoder).items():
        tops = [decoder.topk(row[None], 1, **target) for row in hidden]
        right = np.array([top.ids[0, 0] for top in tops]) == best
        count(found, name, right, np.array([top.answer.exact[0] for top in tops]))


def count(found: Counts, name: str, right: np.ndarray, proven: np.ndarray) -> None:
    counted = {"tokens": len(right), "wrong": int((~right).sum()), "proven": int(proven.sum())}
    found[name].update(counted)
