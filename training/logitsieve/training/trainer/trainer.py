"""One training: model, loss, optimizers with their rates, position in the text, and their state.

All that a step depends on is in `state_dict` or follows from the options and the step's number, so
a resumed run equals, bit for bit, one that was never stopped.

Shape letters: B streams, T time steps, D hidden size, V vocabulary.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import backward
from torch.optim import SGD, Adagrad, AdamW
from torch.sparse import check_sparse_tensor_invariants

from logitsieve.api.errors import InvalidRequest, TrainingFailed
from logitsieve.training.autograd.classes import clip_grad_norm_
from logitsieve.training.config import TrainConfig
from logitsieve.training.trainer.corpus import Corpus, TextStreams, epoch_shift
from logitsieve.training.trainer.language_model import LanguageModel, Recurrent, State
from logitsieve.training.trainer.losses import make_loss
from logitsieve.training.trainer.settings import check_device
from logitsieve.utils.options import Progress, no_progress

VALID_STREAMS, VALID_STEPS = 8, 35
ROW_OPTIMIZERS = {"adagrad": Adagrad, "sgd": SGD}  # they take sparse gradients and dense ones


class Trainer:
    """A model in training; `steps` of `total` are done."""

    def __init__(self, config: TrainConfig, corpus: Corpus) -> None:
        """InvalidRequest for options that do not go together, or not with the text."""
        self.config, self.corpus = config, corpus
        _check(config, corpus)
        torch.set_num_threads(config.threads)
        torch.manual_seed(config.seed)
        self.loss = make_loss(
            config.loss,
            config.loss_option,
            dim=config.dim,
            counts=corpus.counts,
            seed=config.seed,
            device=config.device,
        )
        sizes = len(corpus.vocabulary), config.dim, config.layers, config.dropout
        self.model = Recurrent(*sizes, sparse=self.loss.classes.sparse).to(config.device)
        if config.tied:
            try:
                self.loss.tie(self.model.embedding)
            except InvalidRequest as error:
                got = f"true for {config.loss} ({error})"
                raise InvalidRequest("tied", got, "false: --no-tied") from error
        # Of the LSTM, and of the embedding and the softmax, where a tied matrix counts once.
        rows = dict.fromkeys([self.model.embedding.weight, *self.loss.parameters()])
        self._optimizers = (
            AdamW(
                self.model.lstm.parameters(),
                config.lr,
                weight_decay=config.weight_decay,
                fused=True,
            ),
            ROW_OPTIMIZERS[config.head_optimizer](list(rows), config.lr_of_loss),
        )
        self.loss.track(self._optimizers[1], every=config.index_every, growth=config.index_growth)
        self.per_epoch = len(TextStreams(corpus.train, config.streams, config.steps))
        self.total = config.epochs * self.per_epoch
        if config.words is not None:
            self.total = min(self.total, math.ceil(config.words / config.rows))
        self.steps = 0
        self._state: State | None = None
        self._streams = self._open(0)

    @property
    def words(self) -> int:
        return self.steps * self.config.rows

    @property
    def epoch(self) -> int:
        """The epoch of the last step, from 1 on; 0 before the first."""
        return -(-self.steps // self.per_epoch)

    @property
    def lr(self) -> float:
        return float(self._optimizers[0].param_groups[0]["lr"])

    def step(self) -> tuple[float, float]:
        """Make one update; return its loss in nats a word and the unclipped gradient's norm.

        TrainingFailed if any of this is not finite; nothing is updated then.
        """
        number = self.steps % self.per_epoch
        if number == 0:
            self._streams, self._state = self._open(self.steps // self.per_epoch), None
        factor = lr_factor(self.config, self.steps, self.total)
        rates = (self.config.lr, self.config.lr_of_loss)
        for optimizer, lr in zip(self._optimizers, rates, strict=True):
            optimizer.param_groups[0]["lr"] = lr * factor
            optimizer.zero_grad()
        self.model.train()
        inputs_BT, targets_BT = (ids.to(self.config.device) for ids in self._streams[number])
        hidden_BTD, (hidden, cell) = self.model.hidden(inputs_BT, self._state)
        self._check_finite("LSTM's output", hidden_BTD)
        loss = self.loss(hidden_BTD, targets_BT)
        backward(loss)
        parameters = dict.fromkeys([*self.model.parameters(), *self.loss.parameters()])
        norm = clip_grad_norm_(parameters, self.config.clip)
        self._check_finite("gradient", norm)
        # torch warns of sparse gradients unless checks are switched on or off.
        with check_sparse_tensor_invariants(False):  # type: ignore[no-untyped-call]
            for each in self._optimizers:
                each.step()
        self._state = hidden.detach(), cell.detach()
        self.steps += 1
        return loss.item(), float(norm)

    @torch.no_grad()
    def validate(self, progress: Progress = no_progress) -> float:
        """Return the mean loss on the held-out text in nats a word, under the full softmax.

        At most 7 words at the text's end are left out. TrainingFailed if it is not finite.
        """
        self.model.eval()
        count = max(1, min(VALID_STREAMS, len(self.corpus.valid) // (VALID_STEPS + 1)))
        streams = TextStreams(self.corpus.valid, count, VALID_STEPS)
        state, total, words = None, 0.0, 0
        for inputs_BT, targets_BT in streams.all():
            inputs, targets = inputs_BT.to(self.config.device), targets_BT.to(self.config.device)
            hidden_BTD, state = self.model.hidden(inputs, state)
            self._check_finite("LSTM's output", hidden_BTD)
            loss = self.loss.full_loss(hidden_BTD, targets)
            self._check_finite("full loss", loss)
            total += loss.item() * targets.numel()
            words += targets.numel()
            progress("validate", words, len(self.corpus.valid))
        return total / words

    def language_model(self) -> LanguageModel:
        """Return the model to serve; InvalidRequest if the loss is unservable."""
        exported = self.loss.export()
        tensors = {**self.model.state_dict(), "output.bias": exported.bias}
        if not torch.equal(exported.weight, self.model.embedding.weight):
            tensors["output.weight"] = exported.weight
        return LanguageModel.of(
            {name: tensor.detach().cpu() for name, tensor in tensors.items()},
            normalized=exported.normalized_contexts,
        )

    def state_dict(self) -> dict[str, Any]:
        random = {"cpu": torch.get_rng_state()}  # torch's generators, which dropout uses
        if self.config.device.startswith("cuda"):
            random["cuda"] = torch.cuda.get_rng_state(self.config.device)
        return {
            "steps": self.steps,
            "model": self.model.state_dict(),
            "head": self.loss.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
            "random": random,
            "state": self._state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        self.model.load_state_dict(state["model"])
        self.loss.load_state_dict(state["head"])
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        torch.set_rng_state(state["random"]["cpu"])
        if self.config.device.startswith("cuda"):
            torch.cuda.set_rng_state(state["random"]["cuda"], self.config.device)
        if state["state"] is not None:
            hidden, cell = (tensor.to(self.config.device) for tensor in state["state"])
            self._state = hidden, cell
        self._streams = self._open(self.steps // self.per_epoch)

    def _check_finite(self, what: str, numbers: Tensor) -> None:
        if not bool(numbers.isfinite().all()):
            raise TrainingFailed(f"the {what} of step {self.steps} is not finite: a lower lr?")

    def _open(self, epoch: int) -> TextStreams:
        """Open the text in the order of an epoch, from 0 on."""
        config, ids = self.config, self.corpus.train
        shift = epoch_shift(len(ids), config.seed, epoch)
        return TextStreams(ids, config.streams, config.steps, shift)


def lr_factor(config: TrainConfig, step: int, total: int) -> float:
    """Return the factor of the rates in step 0 .. total - 1: it rises, then falls to 0."""
    rising = math.ceil(config.warm_up * total)
    if step < rising:
        return (step + 1) / rising
    return (1 + math.cos(math.pi * (step - rising) / max(1, total - rising))) / 2


def _check(config: TrainConfig, corpus: Corpus) -> None:
    needed = config.rows + 1
    if len(corpus.train) < needed:
        got = f"{len(corpus.train):,} words to train on"
        raise InvalidRequest("text", got, f"{needed:,}, streams times steps and one, or more")
    if len(corpus.valid) < 2:
        raise InvalidRequest("valid", f"{len(corpus.valid)} words", "2 words or more")
    check_device(config.device)
