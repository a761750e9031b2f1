"""Translate test.tsv with every contender in turns, batch by batch; score, compare, write.

    python -m benchmarks.translate                    # minutes of fitting the first time
    python -m benchmarks.translate --sentences 64     # a look

Needs ../shared; the index is that of `python -m benchmarks.race nmt`, built once into its cache.
BLEU is sacrebleu's with tokenize="none", as the text is tokenised. Times are of the softmax alone,
on one thread; the Transformer is the same for all. "greedy" is beam 1 without log-probabilities.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from sacrebleu import corpus_bleu

from benchmarks.machine import describe
from benchmarks.race.bars import bars
from benchmarks.race.datasets import load
from benchmarks.race.methods import hold_threads
from benchmarks.race.nmt_contexts import load_model_file, read_pairs
from benchmarks.race.ours import indexes_of
from benchmarks.race.prepare import CACHE, SHARED
from benchmarks.rpc import running
from benchmarks.translate.contenders import BASELINES, Clocked, NumpySoftmax, TorchSoftmax
from benchmarks.translate.incremental import Translating
from benchmarks.translate.table import markdown
from logitsieve.api.decoder import Target
from logitsieve.client import DecoderClient
from logitsieve.client.beam_search import beam_search
from logitsieve.decoding import LocalDecoder
from logitsieve.index import Index, open_index

OUT = Path(__file__).parents[1] / "results" / "translate.json"
SEARCHES = (0, 1, 5)  # beams; 0 is greedy search
MOST_WORDS = 80
SHOWN = 5
HEADS = ("exact", "graph", "screen", "certified")
# The graph is calibrated to a precision that costs it 4,096 rows in view and 7 ms a row; this many
# take about as long as the exact head.
PINNED: dict[str, dict[str, float]] = {"graph": {"ef": 256}}
POINTS: dict[str, Target] = {
    "exact": {"head": "exact", "normalizer": "exact"},
    "graph, candidates": {"head": "graph", "normalizer": "candidates"},
    "screen, candidates": {"head": "screen", "normalizer": "candidates"},
    "screen, exact log Z": {"head": "screen", "normalizer": "exact"},
    "screen, certified log Z": {"head": "screen", "normalizer": "certified"},
    "certified, exact log Z": {"head": "certified", "normalizer": "exact"},
    "certified": {"head": "certified", "normalizer": "certified"},
}
WIRED = ("screen", "screen, candidates", "certified")
Words = tuple[int, ...]
Progress = Callable[[str, int, int], None]


def main() -> None:
    """Translate, then write the raw numbers and the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=int, default=1000, help="of test.tsv")
    parser.add_argument("--batch", type=int, default=32, help="sentences at once")
    parser.add_argument("--remote", type=int, default=200, help="of them also over gRPC")
    parser.add_argument("--out", type=Path, default=OUT, help="raw results, JSON")
    parser.add_argument("--cache", type=Path, default=CACHE, help="datasets and indexes")
    parser.add_argument("--shared", type=Path, default=SHARED, help="the folder with data/")
    parser.add_argument("--index", type=Path, help="NAME/VERSION of another index of the model")
    options = parser.parse_args()
    hold_threads(1)
    with bars() as progress:
        index = open_index(options.index) if options.index else the_index(options, progress)
        results = translate(index, options, progress)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", "utf-8")
    text = markdown(results)
    options.out.with_suffix(".md").write_text(text, encoding="utf-8")
    print(text)


def the_index(options: argparse.Namespace, progress: Progress) -> Index:
    """The race's, at the second of its targets."""
    data = load("nmt-captions", options.shared, options.cache)
    found = indexes_of(data, options.cache, (1,), HEADS, False, progress)
    [certified] = [make for name, make, _ in found if name == "certified"]
    return certified().index


def translate(index: Index, options: argparse.Namespace, progress: Progress) -> dict[str, Any]:
    """All searches by all contenders, and those of `WIRED` once more over gRPC."""
    folder = options.shared / "data" / "nmt-de-en"
    module = load_model_file(folder / "nmt_model.py")
    model = module.Translator.load(folder)
    pairs = read_pairs(folder / "test.tsv")[: options.sentences]
    local, softmax = LocalDecoder(index), index.softmax
    searches = {}
    for beams in SEARCHES:
        points = points_of(index, beams)
        racing = [
            Clocked("numpy", NumpySoftmax(softmax), {}),
            Clocked("torch", TorchSoftmax(softmax), {}),
            *(Clocked(name, local, point) for name, point in points.items()),
        ]
        label = f"beam {beams}" if beams else "greedy"
        found = decode(module, model, pairs, racing, beams, options.batch, label, progress)
        searches[label] = judged(model, pairs, racing, found)
        with served(index) as (remote, served_as):
            few = pairs[: options.remote]
            wired = [
                Clocked(name, remote, {**points[name], "model": served_as})
                for name in WIRED
                if name in points
            ]
            again = decode(
                module, model, few, wired, beams, options.batch, f"{label} gRPC", progress
            )
        searches[label]["over gRPC"] = {
            each.name: {
                **each.figures(),
                "sentences": len(few),
                "same_as_in_process": share_equal(again[each.name], found[each.name]),
            }
            for each in wired
        }
    return {
        "machine": describe(),
        "vocab_size": index.vocab_size,
        "dim": index.dim,
        "sentences": len(pairs),
        "batch": options.batch,
        "threads": 1,
        "precision": "float32",
        "index": index.digest,
        "knobs": {name: {**index.head(name).knobs, **PINNED.get(name, {})} for name in index.heads},
        "searches": searches,
    }


def points_of(index: Index, beams: int) -> dict[str, Target]:
    """What the index can answer; greedy search needs no log Z, so there each head once."""
    if not beams:
        points: dict[str, Target] = {head: {"head": head} for head in HEADS}
    else:
        points = POINTS
    return {
        name: {**point, "knobs": PINNED.get(point["head"], {})}
        for name, point in points.items()
        if point["head"] in index.heads
        and (point.get("normalizer") != "certified" or "certified" in index.heads)
    }


def decode(
    module: Any,
    model: Any,
    pairs: Sequence[tuple[list[str], list[str]]],
    racing: Sequence[Clocked],
    beams: int,
    batch: int,
    label: str,
    progress: Progress,
) -> dict[str, list[Words]]:
    """The words of each translation by contender's name; each batch goes round all of them."""
    found: dict[str, list[Words]] = {each.name: [] for each in racing}
    for start in range(0, len(pairs), batch):
        sources = [source for source, _ in pairs[start : start + batch]]
        for each in racing:
            state = Translating(model, sources, module.START)
            search = by_beams if beams else greedily
            found[each.name] += search(each, state, module.END, beams)
        progress(label, min(start + batch, len(pairs)), len(pairs))
    return found


def by_beams(decoder: Any, state: Translating, end: int, beams: int) -> list[Words]:
    """The best of each sentence."""
    options: dict[str, Any] = {"beams": beams, "eos_ids": [end], "max_tokens": MOST_WORDS}
    found = beam_search(decoder, state.start, state.step, **options)
    return [best.tokens for best, *_ in found.hypotheses]


def greedily(decoder: Any, state: Translating, end: int, beams: int) -> list[Words]:
    """The best word after the best word; finished sentences leave."""
    found: list[list[int]] = [[] for _ in state.start]
    hidden, open_ = state.start, np.arange(len(found))
    while True:
        words = decoder.topk(hidden, 1).ids[:, 0]
        for sentence, word in zip(open_, words, strict=True):
            found[sentence].append(int(word))
        rows = np.flatnonzero((words != end) & (len(found[open_[0]]) < MOST_WORDS))
        if not rows.size:
            return [tuple(each) for each in found]
        open_ = open_[rows]
        hidden = state.step(rows.astype(np.int32), words[rows])


def judged(
    model: Any,
    pairs: Sequence[tuple[list[str], list[str]]],
    racing: Sequence[Clocked],
    found: dict[str, list[Words]],
) -> dict[str, Any]:
    """BLEU, times, speed-ups and agreement of each contender, and a few translations."""

    def text(words: Words) -> str:
        return " ".join(model.target_words[word] for word in words if word > 2)

    references = [" ".join(target) for _, target in pairs]
    fastest = min(each.figures()["us_per_step"] for each in racing if each.name in BASELINES)
    figures = {}
    for each in racing:
        lines = [text(words) for words in found[each.name]]
        figures[each.name] = {
            "bleu": corpus_bleu(lines, [references], tokenize="none", force=True).score,
            **each.figures(),
            "speed_up": fastest / each.figures()["us_per_step"],
            "same_as_exact": share_equal(found[each.name], found["exact"]),
            "same_as_torch": share_equal(found[each.name], found["torch"]),
        }
    shown = [
        {
            "source": " ".join(pairs[place][0]),
            "reference": references[place],
            **{name: text(words[place]) for name, words in found.items()},
        }
        for place in differing(found)[:SHOWN]
    ]
    return {"contenders": figures, "shown": shown}


def differing(found: dict[str, list[Words]]) -> list[int]:
    """Sentences on which contenders differ, then the others."""
    kinds = [len(set(words)) for words in zip(*found.values(), strict=True)]
    return sorted(range(len(kinds)), key=lambda place: (-kinds[place], place))


def share_equal(some: Sequence[Words], others: Sequence[Words]) -> float:
    """Of the translations there are in `some`."""
    return sum(a == b for a, b in zip(some, others, strict=False)) / len(some)


@contextmanager
def served(index: Index) -> Iterator[tuple[DecoderClient, str]]:
    """A client of `logitsieve serve` over this index alone, and its name there."""
    with TemporaryDirectory() as models:
        version = Path(models) / "nmt" / str(index.version)
        version.parent.mkdir()
        version.symlink_to(index.path.resolve())
        command = [sys.executable, "-m", "logitsieve.cli", "serve", "--models", models]
        with running(
            [*command, "--port", "0", "--metrics-port", "0", "--no-admin"], "stderr"
        ) as lines:
            ready = next((line for line in lines if line.startswith("gRPC at ")), None)
            if ready is None:
                raise RuntimeError("the server did not start")
            with DecoderClient(ready.split()[2].rstrip(","), timeout_s=60) as client:
                yield client, f"nmt@{index.version}"


if __name__ == "__main__":
    main()
