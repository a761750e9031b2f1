"""Tokens a second in llama.cpp: `python -m benchmarks.llamacpp gemma-3-270m`.

The best token after each of unseen text, by llama.cpp's own output layer and by a decoder's heads
in its place, in one process and in turns, on one thread and on two, of each type of weights. `body`
stops before the output layer: the limit of any head. With `--judge`, best tokens beside the float64
argmax instead (judge.py).
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks import raw
from benchmarks.llamacpp.judge import judge
from benchmarks.llamacpp.models import SHAPES
from benchmarks.llamacpp.prepare import KINDS, index_path, prepared
from benchmarks.machine import describe
from benchmarks.race.methods import hold_threads
from benchmarks.race.prepare import CACHE, SHARED
from logitsieve.client.llamacpp import LlamaContext
from logitsieve.client.llamacpp_heads import UNEDITED, DecoderOutput, DenseOutput, OutputHead
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index

OUT = raw.RESULTS / "llamacpp.json.gz"
THREADS = (1, 2)
PROMPT, TOKENS, ROUNDS = 16, 64, 9
HEADS = ("certified", "screen")


def main() -> None:
    """Measure, join the results of other shapes, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=SHAPES)
    parser.add_argument("--kinds", nargs="*", default=KINDS, choices=KINDS)
    parser.add_argument("--judge", type=int, metavar="TOKENS", help="judge so many tokens")
    parser.add_argument("--threads", type=int, default=2, help="of --judge")
    parser.add_argument("--shared", type=Path, default=SHARED, help="the folder with data/")
    parser.add_argument("--cache", type=Path, default=CACHE, help="models and indexes")
    parser.add_argument("--out", type=Path, default=OUT, help="raw results, JSON")
    options = parser.parse_args()
    results = raw.read(options.out) if options.out.exists() else {}
    ours = results.setdefault(options.name, {})
    for kind in options.kinds:
        folder = prepared(options.name, kind, options.shared, options.cache)
        if options.judge:
            part = {"judged": judge(folder, kind, options.judge, options.threads)}
        else:
            part = {f"{count}": speeds(folder, kind, count) for count in THREADS}
        ours[kind] = ours.get(kind, {}) | part
        ours |= {"shape": asdict(SHAPES[options.name]), "machine": describe()}
        raw.write(options.out, results)
        print(options.name, kind, part)


def speeds(folder: Path, kind: str, threads: int) -> dict[str, Any]:
    """Of each contender: tokens a second and what its head did, median and range over rounds."""
    hold_threads(threads)
    unseen = np.load(folder / "unseen.npy", mmap_mode="r")
    texts = unseen[np.linspace(0, len(unseen) - 1, ROUNDS + 1).astype(int), : PROMPT + TOKENS]
    decoder = LocalDecoder(open_index(index_path(folder, kind), threads=threads))
    runs: dict[str, list[dict[str, float]]] = {}
    with LlamaContext(folder / f"{kind}.gguf", threads=threads, positions=512) as context:
        gguf = context.gguf
        contenders: dict[str, OutputHead | None] = {"llama.cpp": DenseOutput(), "body": None}
        for head in HEADS:
            contenders[head] = DecoderOutput(decoder, {"head": head}, gguf.vocab_size, gguf.softcap)
        for number, text in enumerate(texts.tolist()):
            for name, contender in contenders.items():
                found = decode(context, contender, text)
                if number:  # the first one warms up
                    runs.setdefault(name, []).append(found)
    return {
        name: {
            key: [statistics.median(values), min(values), max(values)]
            for key, values in ((key, [one[key] for one in found]) for key in found[0])
        }
        for name, found in runs.items()
    }


def decode(context: LlamaContext, head: OutputHead | None, text: list[int]) -> dict[str, float]:
    """Choose the token after each of a text, a step a token; None chooses nothing."""
    context.forget()
    context.headless = head is None or head.headless
    rows = context.read(text[:PROMPT])
    head_s, scanned, proven, start = 0.0, 0, 0, perf_counter()
    for token in text[PROMPT:]:
        if head is not None:
            began = perf_counter()
            chosen = head.choose(rows, [UNEDITED], None)
            head_s += perf_counter() - began
            scanned, proven = scanned + int(chosen.scanned[0]), proven + int(chosen.exact[0])
        rows = context.step({0: token})
    seconds = perf_counter() - start
    context.headless = False
    return {
        "tokens_per_s": TOKENS / seconds,
        "head_ms": 1000 * head_s / TOKENS,
        "scanned": scanned / TOKENS,
        "proven": proven / TOKENS,
    }


if __name__ == "__main__":
    main()
