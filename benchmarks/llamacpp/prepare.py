"""Make the models and their indexes, once: `python -m benchmarks.llamacpp.prepare gemma-3-270m`.

The body is random and stays. Its contexts of a text are read by llama.cpp, the output layer is
trained on them by a sampled softmax, whose cost does not grow with V, and written in each type.
Of ../shared/data/docs.txt.gz the last twentieth is kept apart: it judges.

Shape letters: N contexts, D hidden size, V vocabulary, B contexts of a step.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.llamacpp.models import SHAPES, tokens_of, write_gguf
from benchmarks.race.prepare import CACHE, SHARED
from demo.excerpt import read_paragraphs
from logitsieve.cli.output import bars
from logitsieve.index_builder import BuildConfig, build
from logitsieve.llamacpp import LlamaContext
from logitsieve.training import FrequencyProposal, SampledSoftmax

KINDS = ("F16", "Q8_0", "Q4_0")
TARGET = {"p1": 0.998, "p5": 0.99}
WINDOW = 256  # tokens that are read from an empty cache
UNSEEN = 0.05  # of the text, at its end
CONTEXTS = 200_000  # that the layer is trained on
FIT, JUDGED = 20_000, 10_000  # contexts of an index
NEGATIVES, BATCH, PASSES = 4096, 1024, 2
LEARNING_RATE = 1e-3

Progress = Callable[[str, int, int], None]


class Reading(NamedTuple):
    """Contexts, and the token that follows each."""

    hidden: Tensor  # float16 [N, D]
    following: Tensor  # int64 [N]


def folder_of(name: str, cache: Path) -> Path:
    """The models of a shape, `<type>.gguf`, their indexes, and `unseen.npy`."""
    return cache / "llamacpp" / name


def index_path(folder: Path, kind: str) -> Path:
    """The index of a model's output layer; names of indexes are in lower case."""
    return folder / kind.lower() / "1"


def prepared(name: str, kind: str, shared: Path, cache: Path) -> Path:
    """The folder of a shape, whose model and index of a type are made if they are not there."""
    folder = folder_of(name, cache)
    folder.mkdir(parents=True, exist_ok=True)
    with bars() as progress:
        if not (folder / "head.npy").exists():
            train(name, shared, folder, progress)
        if not (folder / f"{kind}.gguf").exists():
            write(name, kind, shared, folder)
        if not (index_path(folder, kind)).exists():
            index(folder, kind, progress)
    return folder


def train(name: str, shared: Path, folder: Path, progress: Progress) -> None:
    """Write `head.npy` [V, D], contexts to fit and to judge by, and the tokens of unseen text."""
    shape, paragraphs = SHAPES[name], read_paragraphs(shared / "data" / "docs.txt.gz")
    untrained = folder / "untrained.gguf"
    write_gguf(untrained, shape, tokens_of(paragraphs, shape.rows), "Q8_0")
    cut = int(len(paragraphs) * (1 - UNSEEN))
    with LlamaContext(untrained, positions=WINDOW, threads=torch.get_num_threads()) as context:
        seen, unseen = (
            windows(context.begin, tokenized(context, part, progress))
            for part in (paragraphs[:cut], paragraphs[cut:])
        )
        train_on = read(context, seen, CONTEXTS, "read to train", progress)
        judged = read(context, unseen, JUDGED, "read to judge", progress)
    untrained.unlink()
    counts = torch.bincount(torch.tensor(seen).flatten(), minlength=shape.rows).clamp(min=1)
    head = trained(train_on, counts, progress)
    print(f"perplexity {perplexity(head, judged):.0f} on unseen text")
    share = max(1, len(train_on.hidden) // FIT)
    np.save(folder / "fit.npy", train_on.hidden[::share].numpy())
    np.save(folder / "judge.npy", judged.hidden.numpy())
    np.save(folder / "unseen.npy", np.array(unseen, np.int32))
    np.save(folder / "head.npy", head.numpy())


def tokenized(context: LlamaContext, paragraphs: list[str], progress: Progress) -> list[int]:
    """The ids of a text, a paragraph at a time."""
    ids: list[int] = []
    for place, line in enumerate(paragraphs):
        ids += context.tokenize(f"{line}\n", begin=False, special=False)
        if place % 1000 == 0:
            progress("tokenize", place, len(paragraphs))
    return ids


def windows(begin: list[int], ids: list[int]) -> list[list[int]]:
    """Stretches of WINDOW tokens, the first of which begins a text."""
    length = WINDOW - len(begin)
    starts = range(0, len(ids) - length, length)
    return [begin + ids[start : start + length] for start in starts]


def read(
    context: LlamaContext, stretches: list[list[int]], contexts: int, stage: str, progress: Progress
) -> Reading:
    """Contexts of evenly spread stretches."""
    wanted = min(len(stretches), contexts // (WINDOW - 1))
    chosen = np.linspace(0, len(stretches) - 1, wanted).astype(int)
    hidden, following = [], []
    context.headless = True
    for number, place in enumerate(chosen):
        context.forget()
        rows = context.read(stretches[place], every=True)[:-1]
        hidden.append(torch.from_numpy(rows).half())
        following += stretches[place][1:]
        progress(stage, number + 1, wanted)
    return Reading(torch.cat(hidden), torch.tensor(following))


def trained(reading: Reading, counts_V: Tensor, progress: Progress) -> Tensor:
    """The output layer [V, D] after PASSES; the step falls linearly to nothing."""
    torch.manual_seed(0)
    dim, rows = reading.hidden.shape[1], len(counts_V)
    proposal = FrequencyProposal(counts_V, n_sampled=NEGATIVES)
    loss = SampledSoftmax(dim, rows, proposal, bias=False, seed=0)
    begin_with_frequencies(loss.classes.weight, reading.hidden, counts_V)
    optimizer = torch.optim.SparseAdam(list(loss.parameters()), LEARNING_RATE)
    steps = PASSES * (len(reading.hidden) // BATCH)
    falling = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    orders = [torch.randperm(len(reading.hidden)) for _ in range(PASSES)]
    for step, chosen_B in enumerate(torch.split(torch.cat(orders), BATCH)[:steps]):
        optimizer.zero_grad()
        loss(reading.hidden[chosen_B].float(), reading.following[chosen_B]).backward()
        optimizer.step()  # type: ignore[no-untyped-call]
        falling.step()
        progress("train the layer", step + 1, steps)
    return loss.classes.weight.detach()


@torch.no_grad()
def begin_with_frequencies(weight_VD: Tensor, hidden_ND: Tensor, counts_V: Tensor) -> None:
    """Rows along the mean context, by which its logits are the tokens' log frequencies."""
    mean_D = hidden_ND.float().mean(0)
    logits_V = counts_V.log() - counts_V.log().mean()
    torch.outer(logits_V, mean_D / mean_D.square().sum(), out=weight_VD)


@torch.inference_mode()
def perplexity(head_VD: Tensor, reading: Reading, contexts: int = 4096) -> float:
    """exp of the mean cross-entropy of evenly spread contexts."""
    share = max(1, len(reading.hidden) // contexts)
    total, hidden, following = 0.0, reading.hidden[::share], reading.following[::share]
    for part, target in zip(torch.split(hidden, 128), torch.split(following, 128), strict=True):
        total += float(
            torch.nn.functional.cross_entropy(part.float() @ head_VD.T, target, reduction="sum")
        )
    return float(np.exp(total / len(following)))


def write(name: str, kind: str, shared: Path, folder: Path) -> None:
    """Write `<kind>.gguf`."""
    paragraphs = read_paragraphs(shared / "data" / "docs.txt.gz")
    tokens = tokens_of(paragraphs, SHAPES[name].rows)
    write_gguf(folder / f"{kind}.gguf", SHAPES[name], tokens, kind, np.load(folder / "head.npy"))


def index(folder: Path, kind: str, progress: Progress) -> None:
    """Build the index; contexts are those of the body in Q8_0, whatever the type."""
    build(
        folder / f"{kind}.gguf",
        None,
        folder / "fit.npy",
        index_path(folder, kind),
        heads=("exact", "certified", "screen"),
        target_precision=TARGET,
        config=BuildConfig(threads=torch.get_num_threads(), clusters_tried=(100,)),
        heldout=folder / "judge.npy",
        best_effort=True,
        progress=progress,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=SHAPES)
    parser.add_argument("--kinds", nargs="*", default=KINDS, choices=KINDS)
    parser.add_argument("--shared", type=Path, default=SHARED, help="the folder with data/")
    parser.add_argument("--cache", type=Path, default=CACHE, help="where to write")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    for kind in options.kinds:
        print(prepared(options.name, kind, options.shared, options.cache))


if __name__ == "__main__":
    main()
