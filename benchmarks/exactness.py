"""What proofs cost: `score` and `beam_step` by normalizer, and how far log Z has to be refined.

    python -m benchmarks.exactness           # the German-English Transformer of ../shared, beam 5

One thread. Every step of a beam search over sentences of the test set is replayed with each
normalizer. docs/exactness.md quotes what this prints.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.machine import describe
from benchmarks.race.nmt_contexts import capture, load_model_file, read_pairs
from benchmarks.race.prepare import SHARED
from benchmarks.timing import batches_of, race
from logitsieve.client.beam_search import beam_search
from logitsieve.decoding import NORMALIZERS, LocalDecoder, beam
from logitsieve.index import open_index
from logitsieve.index_builder import build

BEAMS, AT_ONCE, LONGEST = 5, 20, 60
CONTEXTS = 1000  # sentences of the training set whose contexts the sketch is fitted to

Step = tuple[np.ndarray, dict[str, Any]]


class Recorder:
    """A decoder that notes the arguments of its beam steps."""

    def __init__(self, decoder: LocalDecoder) -> None:
        self._decoder, self.steps = decoder, list[Step]()

    def beam_step(self, hidden: np.ndarray, scores: np.ndarray, **options: Any) -> Any:
        self.steps.append((hidden, {"scores": scores, **options}))
        return self._decoder.beam_step(hidden, scores, **options)


@torch.inference_mode()
def translate(module: Any, model: Any, decoder: Recorder, sentences: list[list[str]]) -> None:
    """Beam searches of some sentences at once."""
    memory, mask = model.encode(model.batch(sentences))
    prefixes = torch.full((len(sentences), 1), module.START)

    def step(parents: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        nonlocal memory, mask, prefixes
        rows = torch.from_numpy(parents).long()
        memory, mask = memory[rows], mask[rows]
        prefixes = torch.cat([prefixes[rows], torch.from_numpy(tokens).long()[:, None]], dim=1)
        return np.asarray(model.hidden(prefixes, memory, mask)[:, -1].numpy())

    first = model.hidden(prefixes, memory, mask)[:, -1].numpy()
    options: Any = {"beams": BEAMS, "eos_ids": [module.END], "max_tokens": LONGEST}
    beam_search(decoder, first, step, **options, head="certified")  # type: ignore[arg-type]


def count_stages(decoder: LocalDecoder, steps: list[Step], normalizer: str) -> Counter[str]:
    """Groups of all steps, and those that each stage was needed for."""
    counts: Counter[str] = Counter()
    kind = type(NORMALIZERS["exact"])
    refined, settle, exact = beam._refined, beam._settle, kind.log_z

    def counting_refined(query: Any, beams: Any, step: Any, doubtful: Any, closer: Any) -> Any:
        counts["in doubt after the first interval"] += int(doubtful.sum())
        return refined(query, beams, step, doubtful, closer)

    def counting_log_z(self: Any, query: Any) -> Any:
        counts["rows in float64"] += len(query.hidden)
        return exact(self, query)

    def counting_settle(*arguments: Any) -> None:
        counts["in double-double"] += 1
        settle(*arguments)

    with (
        patch.object(beam, "_refined", counting_refined),
        patch.object(beam, "_settle", counting_settle),
        patch.object(kind, "log_z", counting_log_z),
    ):
        for hidden, options in steps:
            reply = decoder.beam_step(hidden, **options | {"normalizer": normalizer})
            counts["groups"] += len(reply.parents)
            counts["rows"] += len(hidden)
            counts["groups not exact"] += int((~reply.answer.exact[:: options["beams_in"]]).sum())
    return counts


def print_costs(decoder: LocalDecoder, hidden: np.ndarray) -> None:
    """Microseconds a row, one row a call and 32 at once."""
    index = decoder.index
    weight, bias = index.softmax.weight, index.softmax.bias
    zeros = np.zeros((32, 1), np.int32)

    def dense(rows: np.ndarray, k: int) -> np.ndarray:
        logits = rows @ weight.T + bias
        logits -= logits.max(axis=1, keepdims=True)
        return np.asarray(logits[:, 0] - np.log(np.exp(logits).sum(axis=1)))

    def score(normalizer: Any) -> Any:
        return lambda rows, k: decoder.score(rows, zeros[: len(rows)], normalizer=normalizer)

    def step(normalizer: Any) -> Any:
        options: Any = {"beams_out": 2 * BEAMS, "head": "certified", "normalizer": normalizer}
        return lambda rows, k: decoder.beam_step(rows, beams_in=BEAMS, **options)

    contenders = {
        "numpy: product and log-softmax": dense,
        "score, exact": score("exact"),
        "score, certified": score("certified"),
    }
    for batch in (1, 32):
        for name, times in race(contenders, batches_of(hidden, batch), 1).items():
            print(f"| {name}, B = {batch} | {times['median']:.0f} us a row |", flush=True)
    steps = {f"beam_step, {name}": step(name) for name in ("exact", "certified")}
    for name, times in race(steps, batches_of(hidden, BEAMS), 1).items():
        print(f"| {name}, one group of {BEAMS} | {times['median']:.0f} us a row |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sentences", type=int, default=200, help="of the test set")
    options = parser.parse_args()
    print(describe())
    folder = SHARED / "data" / "nmt-de-en"
    module = load_model_file(folder / "nmt_model.py")
    model = module.Translator.load(folder)
    fitted = read_pairs(folder / "train.tsv.gz")[::50][:CONTEXTS]
    pairs = read_pairs(folder / "test.tsv")[: options.sentences]
    torch.set_num_threads(1)
    with torch.inference_mode(), tempfile.TemporaryDirectory() as place:
        contexts = capture(module, model, fitted, "contexts", lambda *_: None)
        weight, bias = (part.detach().numpy() for part in (model.output.weight, model.output.bias))
        path = Path(place) / "nmt" / "1"
        build(weight, bias, contexts, path, heads=("exact", "certified"), progress=None)
        recorder = Recorder(LocalDecoder(open_index(path)))
        for start in range(0, len(pairs), AT_ONCE):
            sources = [source for source, _ in pairs[start : start + AT_ONCE]]
            translate(module, model, recorder, sources)
        decoder = LocalDecoder(open_index(path))
        for normalizer in ("exact", "certified"):
            print(normalizer, dict(count_stages(decoder, recorder.steps, normalizer)))
        hidden = np.concatenate([rows for rows, _ in recorder.steps])[:6400]
        print_costs(decoder, hidden)


if __name__ == "__main__":
    main()
