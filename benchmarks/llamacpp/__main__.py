"""Tokens a second of a published model: `python -m benchmarks.llamacpp gemma-3-270m`.

Texts of each kind are decoded token by token, by llama.cpp's own output layer and by a decoder's
heads in its place, in one process and in turns, on one thread and on two; `body` stops before the
output layer: the limit of any head. With `--draw` tokens are drawn, by llama.cpp's own chain of
samplers or by the decoder, instead of being the best. With `--judge`, best tokens beside the
float64 argmax instead (judge.py). Each build of llama.cpp is measured (builds.py).
"""

import json
import os
import statistics
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

from benchmarks import raw
from benchmarks.llamacpp.builds import builds
from benchmarks.llamacpp.contenders import DRAWN, contenders
from benchmarks.llamacpp.judge import judge, judge_greedy
from benchmarks.machine import describe
from benchmarks.published.contexts import JUDGED, contexts_folder
from benchmarks.race.methods import hold_threads
from benchmarks.race.prepare import CACHE
from demo.published import MODELS, model_file
from logitsieve.api.requests import Sampling
from logitsieve.client.llamacpp import LlamaContext
from logitsieve.client.llamacpp_heads import UNEDITED, OutputHead
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from logitsieve.index_builder import BuildConfig, build
from logitsieve.index_builder.capture.llamacpp import gguf_primer
from logitsieve.llamacpp.host import Host
from logitsieve.utils.options import no_progress

THREADS = (1, 2)
TOKENS, ROUNDS, POSITIONS = 64, 9, 512


def main() -> None:
    parser = raw.parser(__doc__, "llamacpp.json.gz")
    parser.add_argument("name", choices=MODELS)
    parser.add_argument("--kinds", nargs="*", default=JUDGED, choices=JUDGED, help="of text")
    parser.add_argument("--draw", choices=DRAWN, help="draw so instead of taking the best")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="texts of each kind")
    parser.add_argument("--threads", type=int, nargs="*", default=THREADS, help="CPU threads")
    parser.add_argument("--judge", type=int, metavar="TOKENS", help="judge so many of each kind")
    parser.add_argument("--judge-greedy", type=int, metavar="TOKENS", help="... that it writes")
    options = parser.parse_args()
    results = raw.read(options.out)
    ours = results.setdefault(options.name, {})
    if tokens := options.judge or options.judge_greedy:
        gguf, index = model_file(options.name), prepared_index(options.name)
        how = judge if options.judge else judge_greedy
        judged = how(gguf, index, tokens, options.kinds, max(options.threads))
        ours |= facts(index) | ours | {"judged": ours.get("judged", {}) | judged}
        raw.write(options.out, results)
        return
    folder, index = prepared(options.name)
    gguf = folder / f"{options.name}.gguf"
    ours |= facts(index)
    for label, host in builds().items():
        of_build = ours.setdefault("builds", {}).setdefault(label, {})
        cpu = describe()["cpu"]
        of_build |= {"name": host.name, "system_info": host.system_info, "cpu": cpu}
        print(label, host.name, host.system_info, flush=True)
        times = of_build.setdefault(options.draw or "greedy", {})
        for kind, threads in product(options.kinds, options.threads):
            texts = sequences(folder, kind, options.rounds + 1)
            found = speeds(gguf, index, texts, threads, host, options.draw)
            times.setdefault(kind, {})[str(threads)] = found
            raw.write(options.out, results)
            print(kind, threads, {who: one["tokens_per_s"][0] for who, one in found.items()})


def prepared(name: str) -> tuple[Path, Path]:
    """The folder of a model with its texts, and the index that `logitsieve build` makes of its
    file alone: both are made if need be."""
    return contexts_folder(name), prepared_index(name)


def prepared_index(name: str) -> Path:
    """The index that `logitsieve build` makes of a model's file alone: it is made if need be."""
    out = CACHE / "indexes" / f"{name}-alone" / "1"
    if not out.exists():
        gguf, threads = model_file(name), os.cpu_count() or 1
        contexts, config = gguf_primer(gguf, threads, no_progress), BuildConfig(threads=threads)
        build(gguf, None, contexts, out, heads=("full", "sketch"), config=config)
    return out


def in_turn(names: Sequence[str], minutes: float) -> Iterator[tuple[str, Path, Path, float]]:
    """Yield each model's name, file and index, and until when it has its share of the minutes.

    Its share ends at a time of `monotonic`. All missing files and indexes are made first.
    """
    made = [(name, model_file(name), prepared_index(name)) for name in names]
    began = monotonic()
    for number, one in enumerate(made, 1):
        yield *one, began + 60 * minutes * number / len(made)


def facts(index: Path) -> dict[str, Any]:
    """The machine and the index under the numbers."""
    opened = open_index(index)
    shape = {"vocab_size": opened.vocab_size, "dim": opened.dim}
    sizes = {name: part.size for name, part in opened.manifest.parts.items()}
    return {"machine": describe(), "index": {**shape, "part_bytes": sizes}}


def sequences(folder: Path, kind: str, count: int) -> list[tuple[list[int], int]]:
    """`count` texts, (tokens, how many of them are read at once), the longest, in their order."""
    listed = json.loads((folder / "sequences.json").read_text(encoding="utf-8"))[kind]
    enough = [(tokens, first + 1) for tokens, first in listed if len(tokens) > first + TOKENS]
    return enough[:count]


def speeds(
    gguf: Path,
    index: Path,
    texts: Sequence[tuple[list[int], int]],
    threads: int,
    host: Host,
    draw: str | None,
) -> dict[str, Any]:
    """Tokens a second of each contender and the work of its head, median and range over texts."""
    hold_threads(threads)
    drawing = Sampling.of(1, 1, DRAWN[draw]) if draw else None
    decoder = LocalDecoder(open_index(index, threads=threads))
    runs: dict[str, list[dict[str, float]]] = {}
    with LlamaContext(gguf, threads=threads, positions=POSITIONS, engine=host) as context:
        racing = contenders(context, decoder, drawing)
        for number, (tokens, first) in enumerate(texts):
            for name, head in racing.items():
                text = tokens[:first], tokens[first : first + TOKENS]
                found = decode(context, head, *text, drawing)
                if number:  # the first one warms up
                    runs.setdefault(name, []).append(found)
    return {
        name: {
            key: [statistics.median(values), min(values), max(values)]
            for key, values in ((key, [one[key] for one in found]) for key in found[0])
        }
        for name, found in runs.items()
    }


def decode(
    context: LlamaContext,
    head: OutputHead | None,
    prompt: list[int],
    text: list[int],
    drawing: Sampling | None,
) -> dict[str, float]:
    """Choose each token of a text, a step a token; None chooses nothing.

    Each step reads the text's own token, so that every contender does the same work.
    """
    context.forget()
    context.headless = head is None or head.headless
    rows = context.read(prompt)
    head_s, scanned, proven, start = 0.0, 0, 0, perf_counter()
    for step, token in enumerate(text):
        if head is not None:
            began = perf_counter()
            chosen = head.choose(rows, [UNEDITED], drawing and drawing._replace(step=step))
            head_s += perf_counter() - began
            scanned, proven = scanned + int(chosen.scanned[0]), proven + int(chosen.proven[0])
        rows = context.step({0: token})
    seconds = perf_counter() - start
    context.headless = False
    return {
        "tokens_per_s": len(text) / seconds,
        "head_ms": 1000 * head_s / len(text),
        "scanned": scanned / len(text),
        "proven": proven / len(text),
    }


if __name__ == "__main__":
    main()
