"""The best tokens after unseen text, beside the float64 argmax over the matrix as it is stored.

Float32 products of every row leave the few whose error could hide the best one, and those are
multiplied in float64. llama.cpp's own choice is judged too: it reads the same text again, in the
same batches, with its output layer.

Shape letters: N contexts, D hidden size, V vocabulary.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.llamacpp.prepare import index_path
from logitsieve.api.results import Float32, Int64
from logitsieve.client.llamacpp import LlamaContext
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from logitsieve.llamacpp import OutputMatrix

AT_ONCE = 16  # texts
PART = 512  # contexts multiplied by a part of W
ROWS = 8192  # of W, in a part
PEERED = 10_000  # contexts that llama.cpp chooses for as well


def judge(folder: Path, kind: str, tokens: int, threads: int) -> dict[str, int]:
    """How many best tokens differ from the float64 argmax, of `certified` and of llama.cpp."""
    decoder = LocalDecoder(open_index(index_path(folder, kind), threads=threads))
    found = dict.fromkeys(("tokens", "wrong", "proven", "llamacpp_tokens", "llamacpp_wrong"), 0)
    unseen = np.load(folder / "unseen.npy", mmap_mode="r")
    chosen = np.linspace(0, len(unseen) - 1, -(-tokens // unseen.shape[1])).astype(int)
    path, positions = folder / f"{kind}.gguf", unseen.shape[1]
    with LlamaContext(path, positions=positions, threads=threads) as context:
        for start in range(0, len(chosen), AT_ONCE):
            texts = unseen[chosen[start : start + AT_ONCE]].tolist()
            hidden = read(context, texts, headless=True)
            best = argmax(context.gguf.matrix, hidden)
            top = decoder.topk(hidden, 1, head="certified")
            found["tokens"] += len(best)
            found["wrong"] += int((top.ids[:, 0] != best).sum())
            found["proven"] += int(top.answer.exact.sum())
            if found["llamacpp_tokens"] < PEERED:
                dense = [read(context, [text], headless=False).argmax(1) for text in texts]
                found["llamacpp_tokens"] += len(best)
                found["llamacpp_wrong"] += int((np.concatenate(dense) != best).sum())
            print(found, flush=True)
    return found


def read(context: LlamaContext, texts: list[list[int]], *, headless: bool) -> Float32:
    """The outputs after every token of each text."""
    rows = []
    context.headless = headless
    for text in texts:
        context.forget()
        rows.append(context.read(text, every=True))
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
        for first in range(0, len(hidden), PART):
            part = slice(first, first + PART)
            logits = hidden[part] @ rows.T
            floor = np.maximum(best[part], logits.max(1) - errors[part]) - errors[part]
            for place, row in zip(*np.nonzero(logits >= floor[:, None]), strict=True):
                exact: Any = rows[row].astype(np.float64) @ hidden[first + place].astype(np.float64)
                if exact > best[first + place]:
                    best[first + place], leaders[first + place] = exact, start + row
    return leaders
