"""Tokens a second of the published models on every engine: `python -m benchmarks.llamacpp.engines`.

On each engine its own output layer, our heads in its place, and no head decode the same texts of
each kind in turns, greedy and drawn, on one thread and on two, one text of all ways after the
other until the minutes are over. Texts and indexes that are missing are made before. `--avx2` is
for a CPU that has more: without npm's build, and our kernels held to AVX2 (NUMBA_CPU_FEATURES).
"""

import statistics
from collections.abc import Mapping
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from time import monotonic
from typing import Any, NamedTuple

from benchmarks import raw
from benchmarks.llamacpp.__main__ import decode, facts, in_turn
from benchmarks.llamacpp.builds import builds
from benchmarks.llamacpp.contenders import BODY, DRAWN, contenders
from benchmarks.machine import describe
from benchmarks.published.contexts import JUDGED, answers, windows
from benchmarks.race.methods import hold_threads
from demo.published import CACHE, MODELS
from logitsieve.api.requests import Sampling
from logitsieve.client.llamacpp_heads import OutputHead
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index
from logitsieve.llamacpp import LlamaContext
from logitsieve.utils.options import no_progress

WAYS = {"greedy": None, "top_p 0.95": DRAWN["top_p 0.95"]}
THREADS = (1, 2)
MINUTES, TOKENS, TEXTS, POSITIONS = 14.0, 20, 6, 256
LEFT_OUT = ("full", "screen")  # of our heads

Texts = Mapping[str, list[tuple[list[int], int]]]  # by kind: tokens, those read at once


class Racer(NamedTuple):
    """A contender on an engine, in one way and with a number of threads."""

    build: str
    way: str
    threads: int
    name: str
    context: LlamaContext
    head: OutputHead | None
    drawing: Sampling | None


def main() -> None:
    parser = raw.parser(__doc__, "llamacpp-engines.json.gz")
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=MODELS)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="of all models together")
    parser.add_argument("--avx2", action="store_true", help="only builds with AVX2")
    options = parser.parse_args()
    results = raw.read(options.out)
    for name, gguf, index, until in in_turn(options.models, options.minutes):
        results[name] = measured(gguf, index, until, native=not options.avx2)
        raw.write(options.out, results)


def measured(
    gguf: Path, index: Path, until: float, native: bool = True, texts: Texts | None = None
) -> dict[str, Any]:
    """Measure a model on every engine until a time of `monotonic`: two rounds or more."""
    found = facts(index)
    with ExitStack() as opened:
        contexts = {
            build: opened.enter_context(LlamaContext(gguf, positions=POSITIONS, engine=host))
            for build, host in builds().items()
            if native or build != "native"
        }
        cpu = describe()["cpu"]
        found["builds"] = {
            build: {"name": one.host.name, "system_info": one.host.system_info, "cpu": cpu}
            for build, one in contexts.items()
        }
        texts = texts or texts_of(next(iter(contexts.values())))
        racing = racers(contexts, index)
        times: dict[tuple[str, ...], list[dict[str, float]]] = {}
        rounds, longest = 0, 0.0
        while rounds < 3 or monotonic() + longest < until:
            began = monotonic()
            kinds = list(texts) if rounds else [*texts][:1]  # the first round warms up
            for kind, racer in product(kinds, racing):
                tokens, first = texts[kind][rounds % len(texts[kind])]
                hold_threads(racer.threads)
                racer.context.use_threads(racer.threads)
                text = tokens[:first], tokens[first : first + (TOKENS if rounds else 2)]
                one = decode(racer.context, racer.head, *text, racer.drawing)
                place = racer.build, racer.way, kind, str(racer.threads), racer.name
                if rounds:
                    times.setdefault(place, []).append(one)
            longest = max(longest, monotonic() - began) if rounds else 0.0
            rounds += 1
            print(gguf.stem, "round", rounds, f"{monotonic() - began:.0f} s", flush=True)
    for (build, *keys, name), ones in times.items():
        at = found["builds"][build]
        for key in keys:
            at = at.setdefault(key, {})
        values = {key: [one[key] for one in ones] for key in ones[0]}
        at[name] = {key: [statistics.median(of), min(of), max(of)] for key, of in values.items()}
    return found | {"rounds": rounds - 1, "tokens": TOKENS}


def racers(contexts: Mapping[str, LlamaContext], index: Path) -> list[Racer]:
    """Every contender in every way; those to compare follow one another."""
    decoders = {n: LocalDecoder(open_index(index, threads=n)) for n in THREADS}
    found = []
    for (way, drawn), threads in product(WAYS.items(), THREADS):
        drawing = Sampling.of(1, 1, drawn) if drawn else None
        heads = {
            build: contenders(context, decoders[threads], drawing)
            for build, context in contexts.items()
        }
        unread = LEFT_OUT if drawn is None else (*LEFT_OUT, BODY)  # without a head nothing is drawn
        names = [name for name in next(iter(heads.values())) if name not in unread]
        for name, build in product(names, contexts):
            one = Racer(build, way, threads, name, contexts[build], heads[build][name], drawing)
            found.append(one)
    return found


def texts_of(context: LlamaContext) -> Texts:
    """A few texts of each kind, without reading them; chat is the model's own."""
    found = {kind: windows(context, kind, CACHE, TEXTS) for kind in JUDGED if kind != "chat"}
    found["chat"] = answers(context, no_progress, TEXTS)
    return {
        kind: [(tokens, first + 1) for tokens, first in of if len(tokens) > first + 1 + TOKENS]
        for kind, of in found.items()
    }


if __name__ == "__main__":
    main()
