"""Greedy tokens beside the float64 argmax over the matrix as the file stores it.

Float32 products of every row leave the few whose error could hide the best one, and those are
multiplied in float64. llama.cpp's own choice on the same contexts is judged too: it reads the
same tokens again, in the same batches, with its output layer.

Shape letters: N contexts, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.llamacpp.prepare import index_path
from logitsieve.api.results import Float32, Int64
from logitsieve.client.llamacpp import LlamaContext, attach
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from logitsieve.llamacpp import OutputMatrix

SEQUENCES, PROMPT, LENGTH = 32, 16, 64
AT_ONCE = 512  # contexts multiplied by a part of W
ROWS = 8192  # of W, in a part
PEERED = 10_000  # contexts that llama.cpp chooses for as well


def judge(folder: Path, kind: str, tokens: int) -> dict[str, int]:
    """How many greedy tokens differ from the float64 argmax, of `certified` and of llama.cpp."""
    decoder = LocalDecoder(open_index(index_path(folder, kind), threads=2))
    found: dict[str, int] = dict.fromkeys(("tokens", "wrong", "proven"), 0)
    peer = {"llamacpp_tokens": 0, "llamacpp_wrong": 0}
    with LlamaContext(
        folder / f"{kind}.gguf", sequences=SEQUENCES, positions=SEQUENCES * 128, threads=2
    ) as context:
        for prompts in prompts_of(folder, tokens):
            with attach(context, decoder, head="certified") as attached:
                generation = attached.generate(prompts, max_tokens=LENGTH, ignore_end=True)
                for _ in generation:
                    pass
            texts = [[*p, *made] for p, made in zip(prompts, generation.ids, strict=True)]
            hidden = read(context, texts, headless=True)
            best = argmax(context.gguf.matrix, hidden)
            chosen = decoder.topk(hidden, 1, head="certified")
            found["tokens"] += len(best)
            found["wrong"] += int((chosen.ids[:, 0] != best).sum())
            found["proven"] += int(chosen.answer.exact.sum())
            if peer["llamacpp_tokens"] < PEERED:
                logits = read(context, texts, headless=False)
                peer["llamacpp_tokens"] += len(best)
                peer["llamacpp_wrong"] += int((logits.argmax(1) != best).sum())
            print(found | peer, flush=True)
    return found | peer


def prompts_of(folder: Path, tokens: int) -> Iterator[list[list[int]]]:
    """SEQUENCES at a time, spread over unseen text, for so many tokens in all."""
    unseen = np.load(folder / "unseen.npy", mmap_mode="r")
    rounds = -(-tokens // (SEQUENCES * (LENGTH + PROMPT - 1)))
    per_window = -(-rounds * SEQUENCES // len(unseen))
    starts = [
        (window, place * PROMPT) for place in range(per_window) for window in range(len(unseen))
    ]
    each = iter(starts)
    for _ in range(rounds):
        chosen = list(islice(each, SEQUENCES))
        yield [unseen[window, start : start + PROMPT].tolist() for window, start in chosen]


def read(context: LlamaContext, texts: list[list[int]], *, headless: bool) -> Float32:
    """What follows from every token but the last of each text."""
    rows = []
    context.headless = headless
    for text in texts:
        context.forget()
        rows.append(context.read(text[:-1], every=True))
    context.headless = False
    return np.concatenate(rows)


def argmax(matrix: OutputMatrix, hidden: Float32) -> Int64:
    """The ids [N] of the largest float64 logits, the lower of equal ones."""
    sizes = np.linalg.norm(hidden.astype(np.float64), axis=1)
    best, leaders = np.full(len(hidden), -np.inf), np.zeros(len(hidden), np.int64)
    for start in range(0, matrix.shape[0], ROWS):
        rows = matrix.rows(slice(start, min(start + ROWS, matrix.shape[0])))
        longest = np.linalg.norm(rows, axis=1).max()
        # Higham 2002, (3.5): |fl(x . y) - x . y| <= gamma_D |x| |y|
        errors = 1.01 * rows.shape[1] * 2.0**-24 * longest * sizes
        for first in range(0, len(hidden), AT_ONCE):
            part = slice(first, first + AT_ONCE)
            logits = hidden[part] @ rows.T
            floor = np.maximum(best[part], logits.max(1) - errors[part]) - errors[part]
            for place, row in zip(*np.nonzero(logits >= floor[:, None]), strict=True):
                exact: Any = rows[row].astype(np.float64) @ hidden[first + place].astype(np.float64)
                if exact > best[first + place]:
                    best[first + place], leaders[first + place] = exact, start + row
    return leaders
