"""What proofs cost: `score` and `beam_step`, and which stage of log Z decides groups of beams.

    python -m benchmarks.exactness nmt       # the German-English Transformer of ../shared
    python -m benchmarks.exactness demo      # the demo's language model

One thread. Every step of beam searches is replayed with each normalizer. The counts and times go to
results/exactness.json.gz, where those of the other model are kept.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch

from benchmarks import raw
from benchmarks.machine import describe
from benchmarks.race.nmt_contexts import capture, load_model_file, read_pairs
from benchmarks.race.prepare import SHARED
from benchmarks.timing import Search as TopK
from benchmarks.timing import batches_of, race
from demo.decode import Reader
from logitsieve.client.beam_search import beam_search
from logitsieve.decoding import LocalDecoder, beam
from logitsieve.index import open_index
from logitsieve.index_builder import build
from logitsieve.training.trainer import LanguageModel, Vocabulary
from logitsieve.training.trainer.vocabulary import END

OUT = raw.RESULTS / "exactness.json.gz"
BEAMS, AT_ONCE, LONGEST = 5, 20, 60
FITTED = 1000  # sentences whose contexts the sketch is fitted to
TOP = 5
AT_ONCE_TIMED = 32  # sentences of a timed step, beside one alone
PROMPT = 8  # words of a paragraph that the language model completes

Step = tuple[np.ndarray, dict[str, Any]]


class Search(NamedTuple):
    """The start of beam searches of some sentences at once."""

    hidden: np.ndarray
    step: Callable[[np.ndarray, np.ndarray], np.ndarray]
    end: int


class Task(NamedTuple):
    """A softmax, contexts to fit a sketch to, and searches."""

    weight: np.ndarray
    bias: np.ndarray
    contexts: np.ndarray
    searches: Iterator[Search]


class Recorder:
    """A decoder that notes the arguments of its beam steps."""

    def __init__(self, decoder: LocalDecoder) -> None:
        self._decoder, self.steps = decoder, list[Step]()

    def beam_step(self, hidden: np.ndarray, scores: np.ndarray, **options: Any) -> Any:
        self.steps.append((hidden, {"scores": scores, **options}))
        return self._decoder.beam_step(hidden, scores, **options)


def nmt(sentences: int) -> Task:
    """Translations of the test set."""
    folder = SHARED / "data" / "nmt-de-en"
    module = load_model_file(folder / "nmt_model.py")
    model = module.Translator.load(folder)
    sources = [source for source, _ in read_pairs(folder / "test.tsv")[:sentences]]
    fitted = read_pairs(folder / "train.tsv.gz")[::50][:FITTED]
    contexts = capture(module, model, fitted, "contexts", lambda *_: None)
    weight, bias = (part.detach().numpy() for part in (model.output.weight, model.output.bias))
    starts = range(0, len(sources), AT_ONCE)
    searches = (_translation(module, model, sources[i : i + AT_ONCE]) for i in starts)
    return Task(weight, bias, contexts, searches)


def _translation(module: Any, model: Any, sources: list[list[str]]) -> Search:
    memory, mask = model.encode(model.batch(sources))
    prefixes = torch.full((len(sources), 1), module.START)

    def step(parents: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        nonlocal memory, mask, prefixes
        rows = torch.from_numpy(parents).long()
        memory, mask = memory[rows], mask[rows]
        prefixes = torch.cat([prefixes[rows], torch.from_numpy(tokens).long()[:, None]], dim=1)
        return np.asarray(model.hidden(prefixes, memory, mask)[:, -1].numpy())

    return Search(model.hidden(prefixes, memory, mask)[:, -1].numpy(), step, module.END)


def demo(sentences: int) -> Task:
    """Completions of paragraphs."""
    folder = Path("demo")
    model = LanguageModel.load(folder / "model")
    vocabulary = Vocabulary.load(folder / "model")
    text = gzip.decompress((folder / "text" / "docs.txt.gz").read_bytes()).decode()
    paragraphs = [line for line in text.split("\n") if len(line.split()) > 2 * PROMPT]
    prompts = [vocabulary.encode(line)[:PROMPT] for line in paragraphs[-sentences:]]
    words = vocabulary.encode("\n".join(paragraphs[:FITTED]))
    rows = torch.tensor(words[: len(words) // 64 * 64]).view(-1, 64)
    contexts = model.hidden(rows, None)[0].flatten(0, 1).numpy()
    weight, bias = (part.detach().numpy() for part in (model.output.weight, model.output.bias))
    [end] = vocabulary.encode(END)
    starts = range(0, len(prompts), AT_ONCE)
    return Task(
        weight, bias, contexts, (_completion(model, prompts[i : i + AT_ONCE], end) for i in starts)
    )


def _completion(model: LanguageModel, prompts: list[Any], end: int) -> Search:
    reader = Reader(model)
    return Search(reader.read(prompts), reader.step, end)


# What decides a group of beams, in the order in which it is tried.
STAGES = {
    "exact": ("the first interval", "float64"),
    "certified": ("the first interval", "the float32 pass", "float64"),
}


def count_stages(decoder: LocalDecoder, steps: list[Step], normalizer: str) -> Counter[str]:
    """Groups of all steps, and those that each stage decided."""
    counts: Counter[str] = Counter()
    left: list[int] = []  # groups open after each choice of pairs of a step
    choose = beam._pairs

    def counting(*arguments: Any) -> Any:
        pairs = choose(*arguments)
        left.append(int(pairs.doubtful.sum()))
        return pairs

    with patch.object(beam, "_pairs", counting):
        for hidden, options in steps:
            left.clear()
            reply = decoder.beam_step(hidden, **options | {"normalizer": normalizer})
            counts["groups"] += (open_ := len(reply.parents))
            for stage, after in zip(STAGES[normalizer], left, strict=False):
                counts[stage] += open_ - after
                open_ = after
            counts["not exact"] += int((~reply.answer.exact[:: options["beams_in"]]).sum())
    return counts


def costs(decoder: LocalDecoder, hidden: np.ndarray) -> dict[str, float]:
    """Microseconds a row by what is computed, one row a call and 32 at once."""
    index = decoder.index
    weight, bias = index.softmax.weight, index.softmax.bias
    zeros = np.zeros((32, 1), np.int32)

    def dense(rows: np.ndarray, k: int) -> np.ndarray:
        logits = rows @ weight.T + bias
        logits -= logits.max(axis=1, keepdims=True)
        return np.asarray(logits[:, 0] - np.log(np.exp(logits).sum(axis=1)))

    def score(normalizer: Any) -> Any:
        return lambda rows, k: decoder.score(rows, zeros[: len(rows)], normalizer=normalizer)

    contenders: dict[str, TopK] = {
        "numpy: product and log-softmax": dense,
        "score, exact": score("exact"),
        "score, certified": score("certified"),
        "topk, certified with log Z exact": lambda rows, k: decoder.topk(
            rows, TOP, head="certified", normalizer="exact"
        ),
        "sample, exact": lambda rows, k: decoder.sample(rows, head="exact"),
    }
    found = {}
    for batch in (1, 32):
        for name, times in race(contenders, batches_of(hidden, batch), 1).items():
            found[f"{name}, B = {batch}"] = times["median"]
    for sentences in (1, AT_ONCE_TIMED):
        batches = batches_of(hidden, BEAMS * sentences)
        for name, times in race(steps_of(decoder), batches, 2 * BEAMS).items():
            found[f"beam {BEAMS}, {sentences} at once: {name}"] = times["median"]
    return found


def steps_of(decoder: LocalDecoder) -> dict[str, TopK]:
    """The k best pairs of each group of hypotheses, with no scores so far."""
    softmax = decoder.index.softmax
    weight, bias = (torch.from_numpy(part.copy()) for part in (softmax.weight, softmax.bias))

    def by_numpy(rows: np.ndarray, k: int) -> object:
        logits = rows @ softmax.weight.T
        logits += softmax.bias
        logits -= logits.max(axis=1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(axis=1))[:, None]
        groups = logits.reshape(len(rows) // BEAMS, -1)
        best = np.argpartition(groups, -k, axis=1)[:, -k:]
        values = np.take_along_axis(groups, best, axis=1)
        return np.take_along_axis(best, np.argsort(-values, axis=1), axis=1)

    def by_torch(rows: np.ndarray, k: int) -> object:
        logits = torch.nn.functional.linear(torch.from_numpy(rows), weight, bias)
        return torch.topk(torch.log_softmax(logits, -1).view(len(rows) // BEAMS, -1), k)

    def ours(normalizer: Any) -> TopK:
        options: Any = {"beams_in": BEAMS, "head": "certified", "normalizer": normalizer}
        return lambda rows, k: decoder.beam_step(rows, beams_out=k, **options)

    libraries: dict[str, TopK] = {"numpy": by_numpy, "torch": by_torch}
    return libraries | {f"`beam_step`, `{name}`": ours(name) for name in STAGES}


def _whole_groups(steps: list[Step]) -> np.ndarray:
    """Contexts of all steps but the first of each search, which has one hypothesis a sentence."""
    return np.concatenate([rows for rows, options in steps if options["beams_in"] == BEAMS])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("data", choices=["nmt", "demo"])
    parser.add_argument("--sentences", type=int, default=200, help="beam searches")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with torch.inference_mode(), tempfile.TemporaryDirectory() as place:
        task = {"nmt": nmt, "demo": demo}[options.data](options.sentences)
        path, heads = Path(place) / options.data / "1", ("exact", "certified")
        build(task.weight, task.bias, task.contexts, path, heads=heads, progress=None)
        decoder = LocalDecoder(open_index(path))
        recorder: Any = Recorder(decoder)
        for search in task.searches:
            searching: Any = {"beams": BEAMS, "eos_ids": [search.end], "max_tokens": LONGEST}
            beam_search(recorder, search.hidden, search.step, **searching, head="certified")
        results = {
            "machine": describe(),
            "vocab_size": decoder.index.vocab_size,
            "dim": decoder.index.dim,
            "beams": BEAMS,
            "groups": {
                normalizer: dict(count_stages(decoder, recorder.steps, normalizer))
                for normalizer in STAGES
            },
            "us_per_row": costs(decoder, _whole_groups(recorder.steps)[:6400]),
        }
    raw.write(OUT, (raw.read(OUT) if OUT.exists() else {}) | {options.data: results})
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
