"""Draws beside those from all logits in numpy, torch and Hugging Face's filters, one row a call.

    python -m benchmarks.draws lm-docs        # or any other dataset of benchmarks.race

One thread. Every contender multiplies by W itself, and only `SCORED` finds log-probabilities, too.
Results join those of other datasets in results/draws.json.gz. A sketch is built once, under the
cache of the race.
"""

from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.generation.logits_process import (
    LogitsProcessor,
    MinPLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from benchmarks import raw
from benchmarks.machine import describe
from benchmarks.race.datasets import DATASETS, Dataset, load
from benchmarks.race.methods import hold_threads
from benchmarks.race.prepare import CACHE
from benchmarks.tables.draws import HEADS, PROOF, SCORED
from benchmarks.tables.draws import draws as table
from benchmarks.timing import Search, race
from logitsieve.api.keywords import ModelSpec
from logitsieve.decoding import LocalDecoder
from logitsieve.index import Index, open_index

FEWEST, MOST, PRODUCTS = 16, 512, 1 << 30  # contexts: as many as take so many products with W
ASKED: dict[str, tuple[dict[str, float], int, LogitsProcessor | None]] = {  # options, draws, filter
    "first draw": ({}, 1, None),
    "32 draws": ({}, 32, None),
    "top_p 0.95": ({"top_p": 0.95}, 1, TopPLogitsWarper(0.95)),
    "top_p 0.5": ({"top_p": 0.5}, 1, TopPLogitsWarper(0.5)),
    "top_k 50": ({"top_k": 50}, 1, TopKLogitsWarper(50)),
    "min_p 0.05": ({"min_p": 0.05}, 1, MinPLogitsWarper(0.05)),
}


def main() -> None:
    parser = raw.parser(__doc__, "draws.json.gz")
    parser.add_argument("data", choices=DATASETS, metavar="DATA", help="dataset")
    options = parser.parse_args()
    hold_threads(1)
    data = load(options.data)
    results = measure(sketch_of(data, CACHE / "draws" / data.name / "1"), data)
    raw.write(options.out, raw.read(options.out) | {data.name: results})
    print(table({data.name: results}))


def sketch_of(data: Dataset, path: Path) -> Index:
    """An index with the heads `full` and `sketch`, built where there is none."""
    if not path.exists():
        data.build(path, heads=("full", "sketch")).close()
    return open_index(path)


def measure(index: Index, data: Dataset) -> dict[str, Any]:
    """Microseconds a row of one draw, of many, and of filters; the share that took all of W."""
    wanted = min(MOST, max(FEWEST, PRODUCTS // data.weight.size), len(data.test))
    hidden_states = np.ascontiguousarray(data.test[:: len(data.test) // wanted][:wanted])
    decoder, held = LocalDecoder(index), {"full", *raw.grades_of(index)}
    times, rows = {}, {}
    for name, (options, samples, warper) in ASKED.items():
        contenders: dict[str, Search] = {
            name: sampling(decoder, asked, samples, options | {"log_probs": False})
            for name, asked in HEADS.items()
            if name in held
        }
        contenders[SCORED] = sampling(decoder, PROOF, samples, options)
        contenders |= filtered(data, warper) if warper else dense(data, samples)
        times[name] = race(contenders, hidden_states, 1, 0)
        rows[name] = scanned(decoder, hidden_states, samples, options)
    return {
        "machine": describe(),
        "provenance": data.provenance,
        "vocab_size": index.vocab_size,
        "dim": index.dim,
        "contexts": len(hidden_states),
        "us_per_row": times,
        "scanned": rows,
    }


def sampling(
    decoder: LocalDecoder, spec: ModelSpec, samples: int, options: dict[str, Any]
) -> Search:
    """The public call, a new seed each time."""
    seeds = count()
    given: Any = options | spec
    return lambda rows, _: decoder.sample(rows, samples, seeds=next(seeds), **given)


def scanned(
    decoder: LocalDecoder, hidden_states: np.ndarray, samples: int, options: dict[str, Any]
) -> dict[str, float]:
    """Rows of W that PROOF computes, the mean; and the share of contexts that took all."""
    given: Any = options | {"seeds": 0, "log_probs": False} | PROOF
    rows = hidden_states[:, None]  # a batch may take all of W
    found = np.array([decoder.sample(row, samples, **given).answer.scanned[0] for row in rows])
    return {"rows": float(found.mean()), "all": float((found == decoder.index.vocab_size).mean())}


def dense(data: Dataset, samples: int) -> dict[str, Search]:
    weight, bias, random = data.weight, data.bias, np.random.default_rng(0)
    product = torch_logits(data)

    def noise(rows: np.ndarray, _: int) -> Any:
        logits = rows @ weight.T + bias
        return [(logits + random.gumbel(size=logits.shape)).argmax() for _ in range(samples)]

    def sums(rows: np.ndarray, _: int) -> Any:
        logits = (rows @ weight.T + bias)[0]
        total = np.exp(logits - logits.max()).cumsum()
        return total.searchsorted(random.random(samples) * total[-1])

    def multinomial(rows: np.ndarray, _: int) -> Any:
        return torch.multinomial(product(rows).softmax(1), samples, replacement=True)

    return {
        "numpy Gumbel-max": noise,
        "numpy cumulative sums": sums,
        "torch multinomial": multinomial,
    }


def filtered(data: Dataset, warper: LogitsProcessor) -> dict[str, Search]:
    """A draw as Hugging Face's `generate` makes it: all logits, its own filter, a multinomial."""
    product: Any = torch_logits(data)
    filter_logits: Any = warper

    def draw(rows: np.ndarray, _: int) -> Any:
        return torch.multinomial(filter_logits(None, product(rows)).softmax(1), 1)

    return {"Hugging Face": draw}


def torch_logits(data: Dataset) -> Any:
    weight, bias = torch.from_numpy(data.weight), torch.from_numpy(data.bias)
    return lambda rows: torch.nn.functional.linear(torch.from_numpy(rows), weight, bias)


if __name__ == "__main__":
    main()
