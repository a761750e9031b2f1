"""A real output layer of 70,000 words: the frozen lm-docs LSTM with a wider softmax on top.

Full softmax cross-entropy by Adam (Kingma and Ba 2015), one pass over contexts that the frozen LSTM
gives once; only the layer is trained, so a step is two matrix products and no backward pass
through the model. Words outside the LSTM's own 10,000 are read as <unk>, but predicted as
themselves. The last twentieth of the text, which the LSTM never saw, is held out: its runs go to
tuning and to testing in turn.
Shape letters: N contexts, D hidden size, V words, B contexts of a step, R runs, T words of a run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from demo.excerpt import read_paragraphs
from demo.language_model import Vocabulary

WORDS = 70_000
TRAIN_CONTEXTS = 1_250_000  # the layer learns from these, spread over the text
FIT_CONTEXTS = 150_000  # of them kept for fitting heads, spread again
UNSEEN_CONTEXTS = 40_000  # half to tune, half to test
UNSEEN_SHARE = 0.05  # of the text, at its end: the LSTM was trained on what is before
RUN = 250  # words read from an empty state, T
RUNS_AT_ONCE = 50
BATCH = 2048
SLICE = 64  # contexts whose V logits stay in the cache while they become gradients
LEARNING_RATE = 1e-3

Progress = Callable[[str, int, int], None]


class Reading(NamedTuple):
    """Contexts in the order of the text, and the word that follows each."""

    hidden: Tensor  # float16 [N, D]
    following: Tensor  # int64 [N]


def prepare(shared: Path, cache: Path, progress: Progress) -> None:
    """Write `lm-docs-70k.npz`: W, b, H_fit, H_heldout, H_test, and the perplexities reached."""
    data = shared / "data"
    weights = {
        name: tensor.float()
        for name, tensor in load_file(data / "lm-docs-10k-200.safetensors").items()
    }
    text = (data / "lm-docs-10k-200.vocab.txt").read_text(encoding="utf-8")
    known = Vocabulary(text.split())
    paragraphs = read_paragraphs(data / "docs.txt.gz")
    wide = Vocabulary.most_frequent(paragraphs, WORDS)
    narrow_N, wide_N = encode(paragraphs, known), encode(paragraphs, wide)

    seen = int(len(wide_N) * (1 - UNSEEN_SHARE))
    train = read(weights, narrow_N[:seen], wide_N[:seen], TRAIN_CONTEXTS, "train", progress)
    unseen = read(weights, narrow_N[seen:], wide_N[seen:], UNSEEN_CONTEXTS, "unseen", progress)
    heldout, test = alternate(unseen)

    layer = initial_layer(weights, known, wide, torch.bincount(wide_N[:seen], minlength=WORDS))
    before = perplexity(layer, test)
    train_layer(layer, train, progress)
    reached = {"initial": before, "train": perplexity(layer, Reading(*(x[:20_000] for x in train)))}
    reached |= {"heldout": perplexity(layer, heldout), "test": perplexity(layer, test)}
    print("perplexity", reached)
    runs = train.hidden.view(-1, RUN, train.hidden.shape[1])
    kept = runs[torch.linspace(0, len(runs) - 1, FIT_CONTEXTS // RUN).long()]
    np.savez(
        cache / "lm-docs-70k.npz",
        W=layer.weight.detach().numpy(),
        b=layer.bias.detach().numpy(),
        H_fit=kept.flatten(0, 1).numpy(),
        H_heldout=heldout.hidden.numpy(),
        H_test=test.hidden.numpy(),
        perplexity=json.dumps(reached),
    )


def encode(paragraphs: list[str], vocabulary: Vocabulary) -> Tensor:
    """int64 [N]: the whole text, each paragraph ended by <eos>."""
    return torch.tensor(vocabulary.encode("".join(f"{line}\n" for line in paragraphs)))


@torch.inference_mode()
def read(
    weights: dict[str, Tensor],
    narrow_N: Tensor,
    wide_N: Tensor,
    contexts: int,
    stage: str,
    progress: Progress,
) -> Reading:
    """What the LSTM hands on after each word of evenly spread runs, each from an empty state."""
    embedding = weights["e.weight"]
    dim = embedding.shape[1]
    lstm = nn.LSTM(dim, dim, 2, batch_first=True)
    lstm.load_state_dict({k.removeprefix("r."): v for k, v in weights.items() if k[:2] == "r."})
    lstm.eval()
    starts_R = torch.linspace(0, len(wide_N) - RUN - 1, contexts // RUN).long()
    places_RT = starts_R[:, None] + torch.arange(RUN)
    found = []
    for start in range(0, len(places_RT), RUNS_AT_ONCE):
        hidden_RTD, _ = lstm(embedding[narrow_N[places_RT[start : start + RUNS_AT_ONCE]]])
        found.append(hidden_RTD.flatten(0, 1).half())
        progress(f"read {stage}", min(start + RUNS_AT_ONCE, len(places_RT)), len(places_RT))
    return Reading(torch.cat(found), wide_N[places_RT + 1].flatten())


def alternate(reading: Reading) -> tuple[Reading, Reading]:
    """Every other run: two parts of the same mixture of subjects."""
    runs = [values.view(-1, RUN, *values.shape[1:]) for values in reading]
    return (
        Reading(*(values[0::2].flatten(0, 1) for values in runs)),
        Reading(*(values[1::2].flatten(0, 1) for values in runs)),
    )


def initial_layer(
    weights: dict[str, Tensor], known: Vocabulary, wide: Vocabulary, counts_V: Tensor
) -> nn.Linear:
    """Known words keep their row; the others share that of <unk> by their counts."""
    rows = {word: number for number, word in enumerate(known.words)}
    source_V = torch.tensor([rows.get(word, 0) for word in wide.words])
    layer = nn.Linear(weights["o.weight"].shape[1], len(wide))
    new_V = source_V == 0
    share_V = counts_V[new_V].clamp(min=1).double()
    with torch.no_grad():
        layer.weight.copy_(weights["o.weight"][source_V])
        layer.bias.copy_(weights["o.bias"][source_V])
        layer.bias[new_V] += (share_V / share_V.sum()).log().float()
    return layer


def train_layer(layer: nn.Linear, train: Reading, progress: Progress) -> None:
    """One pass in random order; the step falls linearly to nothing."""
    steps = len(train.following) // BATCH
    optimizer = torch.optim.Adam(layer.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.99))
    falling = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    order_N = torch.randperm(len(train.following), generator=torch.Generator().manual_seed(0))
    for step in range(steps):
        chosen_B = order_N[step * BATCH : (step + 1) * BATCH]
        gradients(layer, train.hidden[chosen_B].float(), train.following[chosen_B])
        optimizer.step()
        falling.step()
        progress("train the layer", step + 1, steps)


@torch.no_grad()
def gradients(layer: nn.Linear, hidden_BD: Tensor, next_B: Tensor) -> None:
    """The layer's gradients of the mean cross-entropy: (softmax - one-hot)^T h."""
    weight_grad, bias_grad = torch.zeros_like(layer.weight), torch.zeros_like(layer.bias)
    for start in range(0, len(next_B), SLICE):
        hidden_SD, next_S = hidden_BD[start : start + SLICE], next_B[start : start + SLICE]
        logits_SV = torch.addmm(layer.bias, hidden_SD, layer.weight.T)
        excess_SV = torch.softmax(logits_SV, 1, out=logits_SV)
        excess_SV[torch.arange(len(next_S)), next_S] -= 1
        weight_grad.addmm_(excess_SV.T, hidden_SD, alpha=1 / len(next_B))
        bias_grad += excess_SV.sum(0) / len(next_B)
    layer.weight.grad, layer.bias.grad = weight_grad, bias_grad


@torch.inference_mode()
def perplexity(layer: nn.Linear, reading: Reading) -> float:
    """exp of the mean cross-entropy."""
    loss = 0.0
    for start in range(0, len(reading.following), SLICE):
        logits = layer(reading.hidden[start : start + SLICE].float())
        target = reading.following[start : start + SLICE]
        loss += float(nn.functional.cross_entropy(logits, target, reduction="sum"))
    return math.exp(loss / len(reading.following))
