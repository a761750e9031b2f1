"""One training: model, loss, optimizers with their rates, position in the text, and their state.

On a CPU a resumed run equals, bit for bit, one that was never stopped.

Shape letters: B streams, T time steps, D hidden size, V vocabulary.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from pickle import UnpicklingError

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import backward
from torch.optim import Adagrad, AdamW, Optimizer
from torch.sparse import check_sparse_tensor_invariants

from logitsieve.api.errors import InvalidRequest, TrainingFailed
from logitsieve.training.autograd.classes import clip_grad_norm_
from logitsieve.training.config import TrainConfig
from logitsieve.training.losses.registry import LOSSES, read_options
from logitsieve.training.trainer.corpus import Corpus, TextStreams
from logitsieve.training.trainer.language_model import LanguageModel, Recurrent, State

VALID_STREAMS, VALID_STEPS = 8, 35
SMOOTH = 100  # steps that the displayed loss averages over


@dataclass
class TrainingStatus:
    """Progress of a training; perplexities are on the held-out text, infinite before a validation.

    rows: words of a step. per_epoch, total: steps. loss: nats a word, averaged over some steps.
    seconds: of training steps alone. validated: the step of the last validation.
    """

    rows: int
    per_epoch: int
    total: int
    steps: int = 0
    loss: float = 0.0
    seconds: float = 0.0
    validated: int = 0
    perplexity: float = math.inf
    best_perplexity: float = math.inf

    @property
    def epoch(self) -> int:
        return -(-self.steps // self.per_epoch)

    @property
    def words_per_second(self) -> float:
        return self.steps * self.rows / max(self.seconds, 1e-9)


class Trainer:
    """A model in training."""

    def __init__(self, config: TrainConfig, corpus: Corpus) -> None:
        """InvalidRequest for options that do not go together, or not with the text."""
        self.config, self.corpus = config, corpus
        self._check()
        torch.set_num_threads(config.threads)
        torch.manual_seed(config.seed)
        counts = torch.from_numpy(np.maximum(corpus.counts, 1))  # of frequencies: positive
        chosen = {"seed": config.seed, **read_options(config.loss, config.loss_option)}
        self.loss = LOSSES[config.loss](
            config.dim, len(counts), class_counts=counts, device=config.device, **chosen
        )
        sizes = len(corpus.vocabulary), config.dim, config.layers, config.dropout
        self.model = Recurrent(*sizes, sparse=self.loss.classes.sparse).to(config.device)
        if config.tied:
            self.loss.tie(self.model.embedding)
        lstm, decay = self.model.lstm.parameters(), config.weight_decay
        rows = dict.fromkeys([self.model.embedding.weight, *self.loss.parameters()])  # tied: once
        self._optimizers = (
            AdamW(lstm, config.lr, weight_decay=decay, fused=True),
            Adagrad(list(rows), config.head_lr),
        )
        self._parts: list[nn.Module | Optimizer] = [self.model, self.loss, *self._optimizers]
        self.loss.track(self._optimizers[1], every=config.index_every, growth=config.index_growth)
        per_epoch = (len(corpus.train) - 1) // config.streams // config.steps
        limit = math.inf if config.words is None else math.ceil(config.words / config.rows)
        total = int(min(config.epochs * per_epoch, limit))
        self.status = TrainingStatus(config.rows, per_epoch, total)
        self._state: State | None = None

    def _check(self) -> None:
        needed = self.config.rows + 1
        if (words := len(self.corpus.train)) < needed:
            allowed = f"{needed:,}, streams times steps and one, or more"
            raise InvalidRequest("text", f"{words:,} words to train on", allowed)
        if (words := len(self.corpus.valid)) < 2:
            raise InvalidRequest("valid", f"{words} words", "2 words or more")
        try:
            torch.zeros(1, device=self.config.device).item()
        except (RuntimeError, AssertionError) as error:
            allowed = "cpu, or a GPU that torch finds"
            raise InvalidRequest("device", self.config.device, allowed) from error

    def step(self) -> float:
        """Make one update; return its loss in nats a word.

        TrainingFailed, before any update, if a hidden state or the gradient is not finite.
        """
        begun, status = time.monotonic(), self.status
        factor = lr_factor(self.config, status.steps, status.total)
        rates = (self.config.lr, self.config.head_lr)
        for optimizer, lr in zip(self._optimizers, rates, strict=True):
            optimizer.param_groups[0]["lr"] = lr * factor
            optimizer.zero_grad()
        self.model.train()
        inputs_BT, targets_BT = self._batch()
        hidden_BTD, (hidden, cell) = self.model.hidden(inputs_BT, self._state)
        self._check_finite("LSTM's output", hidden_BTD)
        loss = self.loss(hidden_BTD, targets_BT)
        backward(loss)
        parameters = dict.fromkeys([*self.model.parameters(), *self.loss.parameters()])
        self._check_finite("gradient", clip_grad_norm_(parameters, self.config.clip))
        # torch warns of sparse gradients unless checks are switched on or off.
        with check_sparse_tensor_invariants(False):  # type: ignore[no-untyped-call]
            for each in self._optimizers:
                each.step()
        self._state = hidden.detach(), cell.detach()
        nats = float(loss.item())
        status.steps += 1
        status.loss += (nats - status.loss) / min(status.steps, SMOOTH)
        status.seconds += time.monotonic() - begun
        return nats

    def _batch(self) -> tuple[Tensor, Tensor]:
        epoch, number = divmod(self.status.steps, self.status.per_epoch)
        if number == 0:
            self._state = None
        config, ids = self.config, self.corpus.train
        shift = int(np.random.default_rng([config.seed, epoch]).integers(len(ids)))
        streams = TextStreams(ids, config.streams, shift, config.device)
        return streams.read(number * config.steps, config.steps)

    @torch.no_grad()
    def validate(self) -> float:
        """Return the perplexity on the held-out text under the full softmax.

        At most 7 words at the text's end are left out. TrainingFailed if it is not finite.
        """
        self.model.eval()
        ids = self.corpus.valid
        count = max(1, min(VALID_STREAMS, len(ids) // (VALID_STEPS + 1)))
        streams = TextStreams(ids, count, device=self.config.device)
        state, total = None, 0.0
        for start in range(0, streams.length, VALID_STEPS):
            inputs_BT, targets_BT = streams.read(start, VALID_STEPS)
            hidden_BTD, state = self.model.hidden(inputs_BT, state)
            self._check_finite("LSTM's output", hidden_BTD)
            total += self.loss.full_loss(hidden_BTD, targets_BT).item() * targets_BT.numel()
        mean = total / (count * streams.length)
        perplexity = torch.tensor(mean, dtype=torch.float64).exp()
        self._check_finite("perplexity", perplexity)
        return float(perplexity)

    def language_model(self) -> LanguageModel:
        """Return the model to serve; InvalidRequest if the loss is unservable."""
        exported = self.loss.export()
        tensors = {**self.model.state_dict(), "output.bias": exported.bias}
        if not torch.equal(exported.weight, self.model.embedding.weight):
            tensors["output.weight"] = exported.weight
        on_cpu = {name: tensor.detach().cpu() for name, tensor in tensors.items()}
        return LanguageModel.of(on_cpu, normalized=exported.normalized_contexts)

    def save(self, file: Path) -> None:
        state = {
            "status": asdict(self.status),
            "parts": [part.state_dict() for part in self._parts],
            "random": torch.get_rng_state(),  # of dropout on a CPU
            "state": self._state,
        }
        fresh = file.with_name(f".tmp-{file.name}")
        torch.save(state, fresh)
        fresh.replace(file)

    def load(self, file: Path) -> None:
        """Go on from a checkpoint; InvalidRequest if it is damaged."""
        try:
            state = torch.load(file, map_location=self.config.device, weights_only=True)
        except (OSError, EOFError, RuntimeError, ValueError, UnpicklingError) as error:
            raise InvalidRequest("resume", f"{file} ({error})", "a whole checkpoint") from error
        vars(self.status).update(state["status"])
        for part, saved in zip(self._parts, state["parts"], strict=True):
            part.load_state_dict(saved)
        torch.set_rng_state(state["random"].cpu())
        self._state = state["state"]

    def _check_finite(self, what: str, numbers: Tensor) -> None:
        if not bool(numbers.isfinite().all()):
            at = f"the {what} of step {self.status.steps}"
            raise TrainingFailed(f"{at} is not finite: a lower lr?")


def lr_factor(config: TrainConfig, step: int, total: int) -> float:
    """Return the factor of the rates in step 0 .. total - 1: it rises, then falls to 0."""
    rising = math.ceil(config.warm_up * total)
    if step < rising:
        return (step + 1) / rising
    return (1 + math.cos(math.pi * (step - rising) / max(1, total - rising))) / 2
