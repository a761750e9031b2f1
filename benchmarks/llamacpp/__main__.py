"""Tokens a second in llama.cpp: `python -m benchmarks.llamacpp gemma-3-270m`.

Greedy continuations of unseen text by llama.cpp's own output layer and by a decoder's heads in its
place, in one process and in turns, on one thread and on two, of each type of weights. `body` stops
before the output layer and reads the tokens that `certified` chose: the limit of any head.
With `--judge`, greedy tokens beside the float64 argmax instead (judge.py).
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
from logitsieve.client.llamacpp import Generation, LlamaContext, attach, generate
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
    parser.add_argument("--judge", type=int, metavar="TOKENS", help="judge so many greedy tokens")
    parser.add_argument("--shared", type=Path, default=SHARED, help="the folder with data/")
    parser.add_argument("--cache", type=Path, default=CACHE, help="models and indexes")
    parser.add_argument("--out", type=Path, default=OUT, help="raw results, JSON")
    options = parser.parse_args()
    results = raw.read(options.out) if options.out.exists() else {}
    ours = results.setdefault(options.name, {})
    for kind in options.kinds:
        folder = prepared(options.name, kind, options.shared, options.cache)
        if options.judge:
            part = {"judged": judge(folder, kind, options.judge)}
        else:
            part = {f"{count}": speeds(folder, kind, count) for count in THREADS}
        ours[kind] = ours.get(kind, {}) | part
        ours |= {"shape": asdict(SHAPES[options.name]), "machine": describe()}
        raw.write(options.out, results)
        print(options.name, kind, part)


def speeds(folder: Path, kind: str, threads: int) -> dict[str, Any]:
    """Of each contender: tokens a second, median and range over rounds, and what its head did."""
    hold_threads(threads)
    unseen = np.load(folder / "unseen.npy", mmap_mode="r")
    places = np.linspace(0, len(unseen) - 1, ROUNDS + 1).astype(int)
    prompts = [unseen[place, :PROMPT].tolist() for place in places]
    decoder = LocalDecoder(open_index(index_path(folder, kind), threads=threads))
    runs: dict[str, list[dict[str, float]]] = {}
    with LlamaContext(folder / f"{kind}.gguf", threads=threads, positions=512) as context:
        for number, prompt in enumerate(prompts):
            turn: dict[str, dict[str, float]] = {}
            for head in HEADS:
                with attach(context, decoder, head=head) as attached:
                    generation = attached.generate(prompt, max_tokens=TOKENS, ignore_end=True)
                    turn[head] = spent(generation)
                if head == "certified":
                    chosen = generation.ids[0]
            turn["llama.cpp"] = spent(generate(context, prompt, max_tokens=TOKENS, ignore_end=True))
            turn["body"] = {"tokens_per_s": body(context, prompt, chosen)}
            for name, found in turn.items():
                if number:  # the first one warms up
                    runs.setdefault(name, []).append(found)
    return {
        name: {
            key: [statistics.median(values), min(values), max(values)]
            for key, values in ((key, [one[key] for one in found]) for key in found[0])
        }
        for name, found in runs.items()
    }


def spent(generation: Generation) -> dict[str, float]:
    """Run to the end: tokens a second after the prompt, and of the head, a token."""
    for _ in generation:
        pass
    counts = generation.counts
    return {
        "tokens_per_s": counts.tokens / counts.seconds,
        "head_ms": 1000 * counts.head_s / counts.tokens,
        "scanned": counts.scanned / counts.tokens,
        "proven": counts.proven / counts.tokens,
    }


def body(context: LlamaContext, prompt: list[int], tokens: list[int]) -> float:
    """Tokens a second without any head."""
    context.forget()
    context.headless = True
    context.read(prompt)
    began = perf_counter()
    for token in tokens[:-1]:
        context.step({0: token})
    seconds = perf_counter() - began
    context.headless = False
    return len(tokens) / seconds


if __name__ == "__main__":
    main()
