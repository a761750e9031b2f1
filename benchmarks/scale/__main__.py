"""Times, bytes and lost shards by V and S; the model and the simulation that follow from them.

    python -m benchmarks.scale              # all of it: an hour, of which the indexes take most
    python -m benchmarks.scale --only simulated

One thread, one row a call, k = 5, D = 200. Writes results/scale.json.gz and three pictures.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import raw
from benchmarks.machine import describe
from benchmarks.race.methods import hold_threads
from benchmarks.race.prepare import CACHE
from benchmarks.scale.calls import K, calls, wire
from benchmarks.scale.indexes import contexts_of, prepared
from benchmarks.scale.lost import lost
from benchmarks.scale.model import costs_of
from benchmarks.scale.plots import draw
from benchmarks.scale.simulation import simulated
from benchmarks.scale.sizes import DIM, KINDS, LOST, REPLICATED, SHARDS, WORDS
from benchmarks.timing import Search, batches_of, race
from logitsieve.index import open_index
from logitsieve.index.contents import read_contents

OUT = raw.RESULTS / "scale.json.gz"
HEADS = ("exact", "certified", "screen")
CALLED = (WORDS[0], WORDS[-1])  # V that are served on Ray
JUDGED = 100_000
WIRE_ROWS = (1, 64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", choices=PARTS, help="parts to measure anew")
    parser.add_argument("--cache", type=Path, default=CACHE, help="indexes and contexts")
    parser.add_argument("--out", type=Path, default=OUT, help="raw results, JSON")
    options = parser.parse_args()
    hold_threads(1)
    results = raw.read(options.out) if options.out.exists() else {}
    for name in options.only or PARTS:
        results |= {"machine": describe(), "dim": DIM, "k": K, name: PARTS[name](results, options)}
        raw.write(options.out, results)
        print(name, results[name], flush=True)
    draw(results, options.out.parent / "scale")


def times(_: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Microseconds of a call in process, by V, of each head of the whole and over shards."""
    found = {}
    for words in WORDS:
        whole = open_index(prepared(words, 0, options.cache))
        contenders: dict[str, Search] = {name: whole.head(name).topk for name in HEADS}
        for kind in KINDS:
            for shards in SHARDS:
                index = open_index(prepared(words, shards, options.cache, kind == REPLICATED))
                contenders[f"{kind}, S = {shards}"] = index.head("certified").topk
        softmax: Any = index.softmax  # of the last, with rows beside the shards
        contenders[REPLICATED] = softmax.replicated.best
        batches = batches_of(np.asarray(contexts_of(words, options.cache)[:2048]), 1)
        found[str(words)] = race(contenders, batches, K)
    return found


def sizes(_: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Bytes of each part, by V, of the whole and of what lies beside so many shards."""
    found = {}
    for words in WORDS:
        whole = read_contents(prepared(words, 0, options.cache)).manifest
        split = read_contents(prepared(words, LOST, options.cache, replicated=True))
        found[str(words)] = {
            **{name: entry.size for name, entry in whole.parts.items()},
            **{name: split.manifest.parts[name].size for name in ("bounds", "replicated")},
            "replicated_rows": len(split.parts["replicated"]["ids"]),
        }
    return found


def called(_: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Calls over shards on Ray, by V, S and what lies beside the shards."""
    found = {}
    for words in CALLED:
        contexts = contexts_of(words, options.cache)
        found[str(words)] = {
            str(shards): {
                kind: calls(
                    prepared(words, shards, options.cache, kind == REPLICATED), shards, contexts
                )
                for kind in KINDS
            }
            for shards in SHARDS
        }
    return found


def on_the_wire(_: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Bytes between an ingress and a shard for a row, by the rows of a call."""
    words = WORDS[-1]
    index = prepared(words, LOST, options.cache, replicated=True)
    contexts = np.asarray(contexts_of(words, options.cache)[:4096])
    return {str(rows): wire(index, contexts, rows) for rows in WIRE_ROWS}


def one_lost(_: Any, options: argparse.Namespace) -> dict[str, Any]:
    """Answers without each shard of the largest softmax, with replicated rows and without."""
    words = WORDS[-1]
    return {
        name: lost(words, LOST, JUDGED, options.cache, replicated)
        for name, replicated in (("replicated", True), ("bounds", False))
    }


def simulation(results: Any, _: argparse.Namespace) -> dict[str, Any]:
    return simulated(costs_of(results))


PARTS: dict[str, Callable[[Any, argparse.Namespace], dict[str, Any]]] = {
    "times": times,
    "sizes": sizes,
    "wire": on_the_wire,
    "called": called,
    "lost": one_lost,
    "simulated": simulation,
}


if __name__ == "__main__":
    main()
