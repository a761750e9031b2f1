"""Language models for the race, trained here: a Transformer of 30,000 words, an LSTM of D = 1,500.

Each reads the first words of docs.txt.gz once, and learns by a sampled softmax. Better models take
days, and their contexts are more peaked: easier to answer. The last twentieth of the text, which
neither saw, is held out: its runs go to tuning and to testing in turn.
Shape letters: N contexts, D hidden size, V words, R runs at once, T words of a run.
"""

import json
import math
from collections import Counter
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from demo.excerpt import read_paragraphs
from logitsieve.training import FrequencyProposal, SampledSoftmax
from logitsieve.training.vocabulary import END, Vocabulary
from logitsieve.utils.options import Progress

RUN = 128  # words read from the beginning of a state, T
STEP_WORDS = 2048  # of a step of training, R T
NEGATIVES = 2000
FIT_CONTEXTS, UNSEEN_CONTEXTS = 100_000, 20_000
WARM_UP = 0.05  # of the steps
CLIP = 0.5
UNSEEN_SHARE = 0.05  # of the text, at its end
SLICE = 128  # contexts scored at once


def has_bfloat16() -> bool:
    """True if oneDNN multiplies bfloat16 on this CPU; elsewhere it has no LSTM of that type."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


@dataclass(frozen=True)
class Design:
    """A model to train."""

    vocabulary: int
    dim: int
    words: int  # to train on
    learning_rate: float
    trained_run: int = RUN  # T of training: short runs are faster to train an LSTM on


class Reader(nn.Module):
    """All of a language model but its softmax."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)


class Transformer(Reader):
    """Contexts from a causal Transformer: pre-norm, learned positions."""

    def __init__(self, design: Design) -> None:
        super().__init__(design.vocabulary, design.dim)
        self.position = nn.Parameter(0.02 * torch.randn(RUN, design.dim))
        layer = nn.TransformerEncoderLayer(
            design.dim, 8, 4 * design.dim, dropout=0.0, batch_first=True, norm_first=True
        )
        norm = nn.LayerNorm(design.dim)
        self.layers = nn.TransformerEncoder(layer, 3, norm, enable_nested_tensor=False)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(RUN))
        nn.init.normal_(self.embedding.weight, std=0.02)

    def forward(self, ids_RT: Tensor) -> Tensor:
        """Contexts [R, T, D]."""
        contexts: Tensor = self.layers(
            self.embedding(ids_RT) + self.position, mask=self.mask, is_causal=True
        )
        return contexts


class LSTM(Reader):
    """Contexts from one layer of LSTM over narrow embeddings."""

    EMBEDDED = 400

    def __init__(self, design: Design) -> None:
        super().__init__(design.vocabulary, self.EMBEDDED)
        self.lstm = nn.LSTM(self.EMBEDDED, design.dim, batch_first=True)

    def forward(self, ids_RT: Tensor) -> Tensor:
        """Contexts [R, T, D]."""
        contexts: Tensor = self.lstm(self.embedding(ids_RT))[0]
        return contexts


MODELS = {
    "transformer-30k": (Transformer, Design(30_000, 512, 2_500_000, 1e-3)),
    "lstm-1500": (LSTM, Design(10_000, 1500, 4_000_000, 2e-3, 64)),
}


def prepare(name: str, shared: Path, cache: Path, progress: Progress) -> None:
    """Write `<name>.npz`: W, b, H_fit, H_heldout, H_test, and the perplexity reached."""
    torch.manual_seed(1)
    kind, design = MODELS[name]
    paragraphs = read_paragraphs(shared / "data" / "docs.txt.gz")
    words = Counter(chain(*([*paragraph.split(), END] for paragraph in paragraphs)))
    ids_N = encode(paragraphs, Vocabulary.most_frequent(words, design.vocabulary))
    cut = int(len(ids_N) * (1 - UNSEEN_SHARE))
    seen_N, unseen_N = ids_N[:cut], ids_N[cut:]
    model = kind(design)
    layer = train(model, seen_N, design, progress)
    fit, _ = read(model, seen_N, FIT_CONTEXTS, "to fit", progress)
    unseen, following_N = read(model, unseen_N, UNSEEN_CONTEXTS, "unseen", progress)
    runs = unseen.view(-1, RUN, design.dim)
    reached = {"test": perplexity(layer, unseen, following_N)}
    print("perplexity", reached)
    heldout, test = (runs[first::2].flatten(0, 1) for first in (0, 1))
    keep(cache / f"{name}.npz", layer, fit, heldout, test, reached)


def batches(ids_N: Tensor, words: int, run: int) -> list[Tensor]:
    """The first `words` in windows [R, T + 1], shuffled."""
    windows = ids_N[: words // run * run + 1].unfold(0, run + 1, run)
    order = torch.randperm(len(windows), generator=torch.Generator().manual_seed(1))
    return list(torch.split(windows[order], STEP_WORDS // run))


def train(model: Reader, ids_N: Tensor, design: Design, progress: Progress) -> nn.Linear:
    """The output layer after one pass; the step rises first, then falls linearly to nothing."""
    counts_V = torch.bincount(ids_N, minlength=design.vocabulary).clamp(min=1)
    sizes = design.dim, design.vocabulary
    proposal = FrequencyProposal(counts_V, n_sampled=NEGATIVES)
    loss = SampledSoftmax(*sizes, proposal, seed=1, sparse=False)
    if model.embedding.weight.shape == loss.classes.weight.shape:
        loss.tie(model.embedding)
    parameters = list({*model.parameters(), *loss.parameters()})
    optimizer = torch.optim.AdamW(parameters, design.learning_rate, betas=(0.9, 0.98), fused=True)
    windows = batches(ids_N, design.words, design.trained_run)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        design.learning_rate,
        total_steps=len(windows),
        pct_start=WARM_UP,
        anneal_strategy="linear",
        cycle_momentum=False,
    )
    for number, window_RT in enumerate(windows):
        with torch.autocast("cpu", torch.bfloat16, enabled=has_bfloat16()):
            contexts = model(window_RT[:, :-1])
        optimizer.zero_grad()
        loss(contexts.float().flatten(0, 1), window_RT[:, 1:].flatten()).backward()
        nn.utils.clip_grad_norm_(parameters, CLIP)
        optimizer.step()
        schedule.step()
        progress("train", number + 1, len(windows))
    model.eval()
    layer, bias = nn.Linear(*sizes), loss.classes.bias
    assert bias is not None
    layer.weight, layer.bias = loss.classes.weight, nn.Parameter(bias.flatten())
    return layer


@torch.inference_mode()
def read(
    model: Reader, ids_N: Tensor, contexts: int, stage: str, progress: Progress
) -> tuple[Tensor, Tensor]:
    """Contexts float16 [N, D] of evenly spread runs, and the words that follow."""
    starts = torch.linspace(0, len(ids_N) - RUN - 1, contexts // RUN).long()
    windows = torch.split(ids_N[starts[:, None] + torch.arange(RUN + 1)], STEP_WORDS // RUN)
    pieces = []
    for number, window in enumerate(windows):
        pieces.append(model(window[:, :-1]).flatten(0, 1).half())
        progress(f"read {stage}", number + 1, len(windows))
    return torch.cat(pieces), torch.cat([window[:, 1:].flatten() for window in windows])


def encode(paragraphs: list[str], vocabulary: Vocabulary) -> Tensor:
    """int64 [N]: the whole text, each paragraph ended by <eos>."""
    return torch.tensor(vocabulary.encode("".join(f"{line}\n" for line in paragraphs)))


def keep(
    path: Path,
    layer: nn.Linear,
    fit: Tensor,
    heldout: Tensor,
    test: Tensor,
    reached: dict[str, float],
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


@torch.inference_mode()
def perplexity(layer: nn.Linear, hidden_ND: Tensor, following_N: Tensor) -> float:
    """exp of the mean cross-entropy."""
    loss = 0.0
    parts = zip(torch.split(hidden_ND, SLICE), torch.split(following_N, SLICE), strict=True)
    for hidden_states, following in parts:
        logits = layer(hidden_states.float())
        loss += float(nn.functional.cross_entropy(logits, following, reduction="sum"))
    return math.exp(loss / len(following_N))
