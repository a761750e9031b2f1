"""Chen, Si, Kumar, Li, Hsieh 2019, Learning to Screen; `benchmarks.race` has its Table 2."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache, partial
from itertools import product
from time import process_time
from typing import Any, TypeAlias

import numpy as np

from benchmarks.papers.runs import Options, Rows, Run
from benchmarks.race.datasets import DEMO_MODEL, Dataset, load
from benchmarks.race.nmt_contexts import load_model_file, read_pairs
from benchmarks.race.peers.adaptive_softmax import AdaptiveSoftmax, label
from benchmarks.race.peers.fgd import fitted_head
from benchmarks.race.prepare import SHARED
from benchmarks.translate import Clocked, search
from logitsieve.api.keywords import ModelSpec, NormalizerName, Purpose
from logitsieve.api.results import Float32
from logitsieve.decoding import LocalDecoder
from logitsieve.decoding.engine import LocalEngine
from logitsieve.evaluation import evaluate
from logitsieve.index import Index
from logitsieve.index.reader import read_contents
from logitsieve.index_builder import BuildConfig
from logitsieve.index_builder.calibrate import NEVER

Way: TypeAlias = Callable[[Float32, np.ndarray], np.ndarray]  # log-probabilities of words [N, 1]
SOFTMAXES = "lm-docs", "nmt-captions"
CLUSTERS, BUDGET = (50, 100, 200, 250), 60.0
PLAIN, TRAINED = 0, BuildConfig().rounds
JUDGED_AT_ONCE, TIMED = 256, 2048
BEAMS, DEEP = (1, 5), 20  # labels of a list: two for each pair that a step of five beams asks for
CANDIDATES = {"normalizer": "candidates"}
RANKS = 20, 40, 80  # R, directions of the low-rank tail
FIRST = 1000  # words in adaptive softmax's first level
SCORED: dict[str, NormalizerName] = {"full": "full", "sketch": "sketch"}
SCORED |= {"svd": "lowrank", "graph": "lowrank", "screen": "lowrank"}
SHOWN = (1, 10, 50)  # places by size of the clusters that are printed
WORDS_SHOWN = 24


def table_3(options: Options) -> Rows:
    """BLEU by head and beams, and the time of the softmax and the choice of pairs.

    The paper's screen leaves no row to another head; lists are built for 5 labels and for DEEP.
    """
    folder = SHARED / "data" / "nmt-de-en"
    module = load_model_file(folder / "nmt_model.py")
    model = module.Translator.load(folder)
    pairs = read_pairs(folder / "test.tsv")
    data = load("nmt-captions")
    heads = ("full", "sketch", "screen")  # the screen passes rows on to `sketch`
    with fitted(data, heads) as index, fitted(data, heads, labels=DEEP) as deep:
        plain = LocalDecoder(index)
        racing = {"full": Clocked(plain, {"head": "full", "normalizer": "full"})}
        racing["graph"] = Clocked(WalkingDecoder(index, data), {**CANDIDATES, "head": "graph"})
        for name, decoder in {"screen": plain, f"screen:labels={DEEP}": LocalDecoder(deep)}.items():
            spec = {**CANDIDATES, "head": "screen"}
            racing[name] = Clocked(decoder, spec)
            alone = {**spec, "knobs": {"escalate": NEVER}}
            racing[f"{name}, escalate={NEVER:g}"] = Clocked(decoder, alone)
        for beams in BEAMS:
            for name, found in search(module, model, pairs, racing, beams).items():
                row = {"head": name, "beams": beams, "sentences": len(pairs), **found}
                yield row | {"data": data.name}


class WalkingDecoder(LocalDecoder):
    """Answers every request by FGD's graph, which no index holds."""

    def __init__(self, index: Index, data: Dataset) -> None:
        super().__init__(index)
        best_ids = label(data.softmax, data.fit)[1]
        self._walk = fitted_head(data.softmax, best_ids, data.heldout[:TIMED])
        self._engines = cache(partial(LocalEngine, self.name, index, self._walk))

    def engine_for(self, spec: ModelSpec, rows: int, k: int, over: Purpose = "") -> LocalEngine:
        """See `Decoder`."""
        return self._engines(spec.get("normalizer", ""))


def fitted(data: Dataset, heads: tuple[str, ...], **config: Any) -> AbstractContextManager[Index]:
    """An index; without a budget of the screen, one for P@1 0.998 and P@5 0.99."""
    target = None if "budget" in config else {"p1": 0.998, "p5": 0.99}
    own = BuildConfig(**config)
    best_effort = target is not None
    return data.built(heads=heads, target_precision=target, config=own, best_effort=best_effort)


def table_5(options: Options) -> Rows:
    """Tables 4 and 5: precision and candidates by clusters, plain and trained."""
    for data in map(load, SOFTMAXES):
        blocks = np.array_split(data.test, len(data.test) // JUDGED_AT_ONCE)
        for seed, clusters, rounds in product(range(options.seeds), CLUSTERS, (PLAIN, TRAINED)):
            about = {"seed": seed, "clusters": clusters, "rounds": rounds}
            with fitted(data, ("full", "screen"), budget=BUDGET, **about) as index:
                head = index.head("screen")
                score = evaluate(head, index.head("full"), blocks, (1, 5))
            row = {f"p{k}": score.precision[k].mean for k in (1, 5)}
            row["candidates"] = score.scanned[5]
            shape = {"vocab_size": index.vocab_size, "dim": index.dim}
            yield {**about, "data": data.name, **row, **shape}


def table_6(options: Options) -> Rows:
    """Perplexity, with logits of R directions for the words that a head does not look at."""
    data = load("lm-docs")
    words = np.load(SHARED / "data" / "lm-docs-10k-200.npz")["y_test"]
    targets = words[len(words) - len(data.test) :, None].astype(np.int32)
    heads = ("full", "sketch", "screen", "svd")
    adaptive = AdaptiveSoftmax(data.softmax, label(data.softmax, data.fit), FIRST)
    for rank in RANKS:
        with fitted(data, heads, svd_width=rank) as index:
            plain, walking = LocalDecoder(index), WalkingDecoder(index, data)
            ways: dict[str, Way] = {}
            for head, normalizer in SCORED.items():
                target: ModelSpec = {"head": head, "normalizer": normalizer}
                if head == "svd":
                    target["knobs"] = {"width": rank}
                if normalizer == "lowrank" or rank == RANKS[0]:
                    decoder = walking if head == "graph" else plain
                    ways[head] = partial(scored, decoder, target)
            if rank == RANKS[0]:
                ways["adaptive softmax"] = adaptive.log_probs
            for head, way in ways.items():
                parts = zip(*(np.array_split(x, 40) for x in (data.test, targets)), strict=True)
                log_probs = np.concatenate([way(*part) for part in parts])
                row: dict[str, Any] = {"head": head, "data": data.name}
                row["rank"] = str(rank) if SCORED.get(head) == "lowrank" else ""
                row["perplexity"] = float(np.exp(-log_probs.mean(dtype=float)))
                yield row | {"cpu_us": cpu_us(way, data.test[:TIMED])}


def scored(
    decoder: LocalDecoder, spec: ModelSpec, hidden_states: Float32, words: np.ndarray
) -> np.ndarray:
    return decoder.score(hidden_states, words, **spec).log_probs


def cpu_us(way: Way, hidden_states: Float32) -> float:
    """CPU microseconds a row of scoring one word a row, whichever it is, one row a call."""
    word, rows = np.zeros((1, 1), np.int32), np.split(hidden_states, len(hidden_states))
    way(rows[0], word)
    start = process_time()
    for row in rows:
        way(row, word)
    return 1e6 * (process_time() - start) / len(rows)


def table_7(options: Options) -> Rows:
    """Words of the trained clusters of the demo, the shortest lists first, without common ones."""
    words = (DEMO_MODEL / "vocab.txt").read_text(encoding="utf-8").split("\n")
    data = load("demo")
    with fitted(data, ("full", "screen"), clusters=100, budget=BUDGET) as index:
        part = read_contents(index.path).parts["screen"]
        lists = np.split(part["ids"], part["offsets"][1:-1])
        common = np.bincount(part["ids"], minlength=len(words))
        lists.sort(key=len)
        shown = [[words[word] for word in lists[place] if common[word] < 20] for place in SHOWN]
        for found in shown:
            yield {"words": found[:WORDS_SHOWN], "candidates": len(found)}


RUNS: dict[str, Run] = {
    "table 3": table_3,
    "table 5": table_5,
    "table 6": table_6,
    "table 7": table_7,
}
