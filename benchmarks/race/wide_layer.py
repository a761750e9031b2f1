"""A real output layer of 70,000 words: the frozen lm-docs LSTM with a wider softmax on top.

Full softmax cross-entropy by Adam (Kingma and Ba 2015), one pass over contexts that the frozen LSTM
gives once; only the layer is trained. Words outside the LSTM's own 10,000 are read as <unk>, but
predicted as themselves. Rows of known words stay, which learnt from all of the text. Of the new
words, which occur a few times each, every context is used, of the others a share, which weighs as
much more. The last twentieth of the text, which the LSTM never saw, is held out: its runs go to
tuning and to testing in turn.
Shape letters: N contexts, D hidden size, V words, B contexts of a step, R runs, T words of a run.
"""

import json
import math
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.autograd import backward

from demo.excerpt import read_paragraphs
from logitsieve.training.vocabulary import END, Vocabulary
from logitsieve.utils.options import Progress

WORDS = 70_000
TRAIN_CONTEXTS = 750_000  # the layer learns from these
FIT_CONTEXTS = 150_000  # for fitting heads, spread over the same text
UNSEEN_CONTEXTS = 40_000  # half to tune, half to test
UNSEEN_SHARE = 0.05  # of the text, at its end: the LSTM was trained on what is before
RUN = 250  # words read from an empty state, T
RUNS_AT_ONCE = 100
BATCH = 512
SLICE = 128  # contexts scored at once
LEARNING_RATE = 1e-3
ADAM_EPSILON = 1e-6  # a word that is never a target is not pushed down at full step


Reached: TypeAlias = dict[str, float]


class Reading(NamedTuple):
    """Contexts in the order of the text, and the word that follows each."""

    hidden_states: Tensor  # float16 [N, D]
    following: Tensor  # int64 [N]
    weight: Tensor  # float32 [N], how many contexts of the text it stands for


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
    words = Counter(chain(*([*paragraph.split(), END] for paragraph in paragraphs)))
    wide = Vocabulary.most_frequent(words, WORDS)
    text_2N = torch.stack([encode(paragraphs, known), encode(paragraphs, wide)])
    cut = int(text_2N.shape[1] * (1 - UNSEEN_SHARE))
    seen_2N, unseen_2N = text_2N[:, :cut], text_2N[:, cut:]
    old = set(known.words)
    new_V = torch.tensor([word not in old for word in wide.words])
    train = read(weights, seen_2N, cut, "all to train on", progress, new_V)
    fit = read(weights, seen_2N, FIT_CONTEXTS, "to fit", progress)
    heldout, test = alternate(read(weights, unseen_2N, UNSEEN_CONTEXTS, "unseen", progress))

    layer = initial_layer(weights, known, wide, torch.bincount(seen_2N[1], minlength=WORDS))
    reached = {"before training": perplexity(layer, *test[:2])}
    train_layer(layer, train, new_V, progress)
    every_eighth = Reading(*(x[::8] for x in fit))
    for name, part in (("fit", every_eighth), ("heldout", heldout), ("test", test)):
        reached[name] = perplexity(layer, *part[:2])
    print("perplexity", reached)
    parts = fit.hidden_states, heldout.hidden_states, test.hidden_states
    keep(cache / "lm-docs-70k.npz", layer, *parts, reached)


def keep(
    path: Path, layer: nn.Linear, fit: Tensor, heldout: Tensor, test: Tensor, reached: Reached
) -> None:
    """Write a softmax, contexts of it, and the perplexities reached."""
    np.savez(
        path,
        W=layer.weight.detach().numpy(),
        b=layer.bias.detach().numpy(),
        H_fit=fit.numpy(),
        H_heldout=heldout.numpy(),
        H_test=test.numpy(),
        perplexity=json.dumps(reached),
    )


def encode(paragraphs: list[str], vocabulary: Vocabulary) -> Tensor:
    """int64 [N]: the whole text, each paragraph ended by <eos>."""
    return torch.tensor(vocabulary.encode("".join(f"{line}\n" for line in paragraphs)))


@torch.inference_mode()
def read(
    weights: dict[str, Tensor],
    text_2N: Tensor,
    contexts: int,
    stage: str,
    progress: Progress,
    new_V: Tensor | None = None,
) -> Reading:
    """Hidden states after each word of evenly spread runs, each run from an empty state.

    `text_2N` is the text in the LSTM's vocabulary and in the wide one. Given `new_V`, the contexts
    of those words and a share of the others, TRAIN_CONTEXTS in all.
    """
    embedding = weights["e.weight"]
    dim = embedding.shape[1]
    lstm = nn.LSTM(dim, dim, 2, batch_first=True)
    lstm.load_state_dict({k.removeprefix("r."): v for k, v in weights.items() if k[:2] == "r."})
    lstm.eval()
    narrow_N, wide_N = text_2N
    starts_R = torch.linspace(0, len(wide_N) - RUN - 1, contexts // RUN).long()
    places_RT = starts_R[:, None] + torch.arange(RUN)
    share, random = 1.0, torch.Generator().manual_seed(1)
    if new_V is not None:
        new = int(new_V[wide_N].sum())
        share = min(1.0, max(TRAIN_CONTEXTS - new, new) / (len(wide_N) - new))
    found = []
    for start in range(0, len(places_RT), RUNS_AT_ONCE):
        places = places_RT[start : start + RUNS_AT_ONCE]
        hidden_RTD, _ = lstm(embedding[narrow_N[places]])
        next_N = wide_N[places + 1].flatten()
        keep_N, weight_N = torch.ones(len(next_N), dtype=torch.bool), torch.ones(len(next_N))
        if new_V is not None:
            keep_N = new_V[next_N] | (torch.rand(len(next_N), generator=random) < share)
            weight_N = torch.where(new_V[next_N], 1.0, 1 / share)
        found.append((hidden_RTD.flatten(0, 1)[keep_N].half(), next_N[keep_N], weight_N[keep_N]))
        progress(f"read {stage}", min(start + RUNS_AT_ONCE, len(places_RT)), len(places_RT))
    return Reading(*(torch.cat(columns) for columns in zip(*found, strict=True)))


def alternate(reading: Reading) -> tuple[Reading, Reading]:
    """Every other run: two parts of the same mixture of subjects."""
    runs = [values.view(-1, RUN, *values.shape[1:]) for values in reading]
    first, second = (Reading(*(each[start::2].flatten(0, 1) for each in runs)) for start in (0, 1))
    return first, second


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


def train_layer(layer: nn.Linear, train: Reading, new_V: Tensor, progress: Progress) -> None:
    """One pass in random order, over the rows of new words; the step falls linearly to nothing."""
    steps = len(train.following) // BATCH
    optimizer = torch.optim.Adam(layer.parameters(), lr=LEARNING_RATE, eps=ADAM_EPSILON)
    falling = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)
    order_N = torch.randperm(len(train.following), generator=torch.Generator().manual_seed(0))
    mean_weight = train.weight.mean()
    for step in range(steps):
        chosen_B = order_N[step * BATCH : (step + 1) * BATCH]
        hidden_BD, next_B, weight_B = (column[chosen_B] for column in train)
        with torch.autocast("cpu", torch.bfloat16):
            logits_BV = layer(hidden_BD.float())
        losses_B = nn.functional.cross_entropy(logits_BV.float(), next_B, reduction="none")
        optimizer.zero_grad()
        backward((losses_B * weight_B / mean_weight).mean())
        for parameter in layer.parameters():
            assert parameter.grad is not None
            parameter.grad[~new_V] = 0
        optimizer.step()
        falling.step()
        progress("train the layer", step + 1, steps)


@torch.inference_mode()
def perplexity(layer: nn.Linear, hidden_ND: Tensor, following_N: Tensor) -> float:
    """exp of the mean cross-entropy."""
    loss = 0.0
    parts = zip(torch.split(hidden_ND, SLICE), torch.split(following_N, SLICE), strict=True)
    for hidden_states, following in parts:
        logits = layer(hidden_states.float())
        loss += float(nn.functional.cross_entropy(logits, following, reduction="sum"))
    return math.exp(loss / len(following_N))
