"""One training: model, loss, optimizers with their rates, position in the text, and their state.

All that a step depends on is in `state_dict` or follows from the options and the step's number, so
a resumed run equals, bit for bit, one that was never stopped.

Shape letters: B streams, T time steps, D hidden size, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import backward
from torch.optim import Optimizer
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


class Trainer:
    """A model in training; `steps` of `total` are done."""

    def __init__(self, config: TrainConfig, corpus: Corpus) -> None:
        """InvalidRequest for options that do not go together, or not with the text."""
        self.config, self.corpus = config, corpus
        _check(config, corpus)
        torch.set_num_threads(config.threads)
        torch.manual_seed(config.seed)
        words = len(corpus.vocabulary)
        self.loss = make_loss(
            config.loss,
            config.loss_option,
            dim=config.dim,
            counts=corpus.counts,
            seed=config.seed,
            device=config.device,
        )
        sparse = self.loss.classes.sparse
        self.model = Recurrent(words, config.dim, config.layers, config.dropout, sparse=sparse)
        self.model.to(config.device)
        if config.tied:
            try:
                self.loss.tie(self.model.embedding)
            except InvalidRequest as error:
                got = f"true for {config.loss} ({error})"
                raise InvalidRequest("tied", got, "false: --no-tied") from error
        self._make_optimizers(sparse)
        self.per_epoch = len(TextStreams(corpus.train, config.streams, config.steps))
        self.total = config.epochs * self.per_epoch
        if config.words is not None:
            self.total = min(self.total, math.ceil(config.words / config.rows))
        self.steps = 0
        self._state: State | None = None
        self._streams = self._open(0)

    def _make_optimizers(self, sparse: bool) -> None:
        config = self.config
        matrices = [self.model.embedding.weight, *self.loss.parameters()]
        rows = list(dict.fromkeys(matrices))  # a tied matrix once
        name = loss_optimizer(config, sparse=sparse)
        lrs = (config.lr, config.lr_of_loss)
        self._rest = make_optimizer(config.optimizer, self.model.lstm.parameters(), lrs[0], config)
        self._rows = make_optimizer(name, rows, lrs[1], config)
        self._optimizers = tuple(zip((self._rest, self._rows), lrs, strict=True))
        self.loss.track(self._rows, every=config.index_every, growth=config.index_growth)

    @property
    def words(self) -> int:
        return self.steps * self.config.rows

    @property
    def epoch(self) -> int:
        """The epoch of the last step, from 1 on; 0 before the first."""
        return -(-self.steps // self.per_epoch)

    @property
    def lr(self) -> float:
        return float(self._rest.param_groups[0]["lr"])

    def step(self) -> tuple[float, float]:
        """Make one update; returns its loss in nats a word and the unclipped gradient's norm.

        TrainingFailed if any of this is not finite; nothing is updated then.
        """
        number = self.steps % self.per_epoch
        if number == 0:
            self._streams, self._state = self._open(self.steps // self.per_epoch), None
        factor = lr_factor(self.config, self.steps, self.total)
        for optimizer, lr in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = lr * factor
            optimizer.zero_grad()
        self.model.train()
        inputs_BT, targets_BT = (ids.to(self.config.device) for ids in self._streams[number])
        device = torch.device(self.config.device).type
        with torch.autocast(device, torch.bfloat16, enabled=self.config.bfloat16):
            hidden_BTD, (hidden, cell) = self.model.hidden(inputs_BT, self._state)
        self._check_finite("LSTM's output", hidden_BTD)
        loss = self.loss(hidden_BTD, targets_BT)
        backward(loss)
        parameters = dict.fromkeys([*self.model.parameters(), *self.loss.parameters()])
        norm = clip_grad_norm_(parameters, self.config.clip)
        self._check_finite("gradient", norm)
        # SparseAdam's tensors: torch warns unless checks are switched on or off.
        with check_sparse_tensor_invariants(False):  # type: ignore[no-untyped-call]
            for optimizer, _ in self._optimizers:
                optimizer.step()
        self._state = hidden.detach(), cell.detach()
        self.steps += 1
        return loss.item(), float(norm)

    @torch.no_grad()
    def validate(
        self, stop: Callable[[], bool] = lambda: False, progress: Progress = no_progress
    ) -> float | None:
        """The mean loss on the held-out text in nats a word, under the full softmax, in float32.

        None if `stop` returned True meanwhile. At most 7 words at the text's end are left out.
        TrainingFailed if it is not finite.
        """
        self.model.eval()
        count = max(1, min(VALID_STREAMS, len(self.corpus.valid) // (VALID_STEPS + 1)))
        streams = TextStreams(self.corpus.valid, count, VALID_STEPS)
        state, total, words = None, 0.0, 0
        for inputs_BT, targets_BT in streams.all():
            if stop():
                return None
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
        """The model to serve; InvalidRequest if the loss is unservable."""
        exported = self.loss.export()
        tensors = {
            **self.model.state_dict(),
            "output.weight": exported.weight,
            "output.bias": exported.bias,
        }
        if torch.equal(exported.weight, self.model.embedding.weight):
            del tensors["output.weight"]
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
            "optimizers": [optimizer.state_dict() for optimizer, _ in self._optimizers],
            "random": random,
            "state": self._state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]
        self.model.load_state_dict(state["model"])
        self.loss.load_state_dict(state["head"])
        for (optimizer, _), saved in zip(self._optimizers, state["optimizers"], strict=True):
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
        """The text in the order of an epoch, from 0 on."""
        config, ids = self.config, self.corpus.train
        return TextStreams(
            ids, config.streams, config.steps, epoch_shift(len(ids), config.seed, epoch)
        )


def make_optimizer(
    name: str, parameters: Iterable[Tensor], lr: float, config: TrainConfig
) -> Optimizer:
    """The optimizer of that name, at its highest learning rate."""
    kinds: dict[str, tuple[Callable[..., Optimizer], dict[str, Any]]] = {
        "adamw": (torch.optim.AdamW, {"weight_decay": config.weight_decay, "fused": True}),
        "sparse-adam": (torch.optim.SparseAdam, {}),
        "adagrad": (torch.optim.Adagrad, {}),
        "sgd": (torch.optim.SGD, {}),
    }
    kind, more = kinds[name]
    return kind(list(parameters), lr=lr, **more)


def loss_optimizer(config: TrainConfig, *, sparse: bool) -> str:
    """The name of the loss's optimizer; InvalidRequest if it does not take such gradients."""
    name = config.head_optimizer
    if name == "auto":
        return "sparse-adam" if sparse else "adamw"
    if name == ("adamw" if sparse else "sparse-adam"):
        allowed = ("auto", "sparse-adam" if sparse else "adamw", "adagrad", "sgd")
        kind = "sparse" if sparse else "dense"
        got = f"{name} for the {kind} gradients of {config.loss}"
        raise InvalidRequest("head_optimizer", got, ", ".join(allowed))
    return name


def lr_factor(config: TrainConfig, step: int, total: int) -> float:
    """Factor of the learning rates in step 0 .. total - 1: it rises, then falls to 0."""
    rising = math.ceil(config.warm_up * total)
    if step < rising:
        return (step + 1) / rising
    if config.schedule == "constant":
        return 1.0
    done = (step - rising) / max(1, total - rising)
    return 1 - done if config.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2


def _check(config: TrainConfig, corpus: Corpus) -> None:
    needed = config.streams * config.steps + 1
    if len(corpus.train) < needed:
        got = f"{len(corpus.train):,} words to train on"
        raise InvalidRequest("text", got, f"{needed:,}, streams times steps and one, or more")
    if len(corpus.valid) < 2:
        raise InvalidRequest("valid", f"{len(corpus.valid)} words", "2 words or more")
    check_device(config.device, bfloat16=config.bfloat16)
