"""One training: model, loss, optimizers, where in the text it is, and all of that as a state.

Everything that a step depends on is in `state_dict` or follows from the options and the number of
the step, so that a run that goes on is, bit for bit, the run that was never stopped.

Shape letters: B streams, T time steps, D hidden size, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import backward
from torch.sparse import check_sparse_tensor_invariants

from logitsieve.api.errors import InvalidRequest, TrainingFailed
from logitsieve.api.results import Int32
from logitsieve.training.autograd.clip import clip_grad_norm_
from logitsieve.training.trainer.config import TrainConfig, check_device
from logitsieve.training.trainer.corpus import Corpus
from logitsieve.training.trainer.files import random_state, set_random_state
from logitsieve.training.trainer.language_model import LanguageModel, Recurrent, State
from logitsieve.training.trainer.losses import make_loss
from logitsieve.training.trainer.optimizers import head_optimizer, make, rate, set_lr
from logitsieve.training.trainer.streams import TextStreams, epoch_shift
from logitsieve.utils.options import Progress, no_progress

VALID_STREAMS, VALID_STEPS = 8, 35


class Trainer:
    """A model in training; `steps` of `total` are done."""

    def __init__(self, config: TrainConfig, corpus: Corpus) -> None:
        """InvalidRequest where options do not go together, or with the text."""
        self.config, self.corpus = config, corpus
        _check(config, corpus)
        torch.set_num_threads(config.threads)
        torch.manual_seed(config.seed)
        words = len(corpus.vocabulary)
        self.head = make_loss(
            config.loss,
            config.loss_option,
            dim=config.dim,
            counts=corpus.counts,
            seed=config.seed,
            device=config.device,
        )
        sparse = self.head.classes.sparse
        self.model = Recurrent(words, config.dim, config.layers, config.dropout, sparse=sparse)
        self.model.to(config.device)
        if config.tied:
            self._tie()
        self._make_optimizers(sparse)
        self.per_epoch = len(TextStreams(corpus.train, config.streams, config.steps))
        self.total = config.epochs * self.per_epoch
        if config.words is not None:
            self.total = min(self.total, math.ceil(config.words / config.rows))
        self.steps = 0
        self._state: State | None = None
        self._streams = self._open(0)

    def _tie(self) -> None:
        try:
            self.head.tie(self.model.embedding)
        except InvalidRequest as error:
            got = f"true for {self.config.loss} ({error})"
            raise InvalidRequest("tied", got, "false: --no-tied") from error

    def _make_optimizers(self, sparse: bool) -> None:
        config = self.config
        own = [self.model.embedding.weight, *self.head.parameters()]
        rows = list(dict.fromkeys(own))  # a tied matrix once
        name = head_optimizer(config, sparse=sparse)
        lrs = (config.lr, config.lr_of_loss)
        self._rest = make(config.optimizer, self.model.lstm.parameters(), lrs[0], config)
        self._rows = make(name, rows, lrs[1], config)
        self._optimizers = tuple(zip((self._rest, self._rows), lrs, strict=True))
        self.head.track(self._rows, every=config.index_every, growth=config.index_growth)

    @property
    def words(self) -> int:
        """Words trained on so far."""
        return self.steps * self.config.rows

    @property
    def epoch(self) -> int:
        """The epoch of the last step, from 1 on; 0 before the first."""
        return -(-self.steps // self.per_epoch)

    @property
    def lr(self) -> float:
        """The learning rate of the last step."""
        return float(self._rest.param_groups[0]["lr"])

    def step(self) -> tuple[float, float]:
        """One update; its loss in nats a word, and the norm of the gradient before clipping.

        TrainingFailed where any of this is not finite; then nothing was updated.
        """
        number = self.steps % self.per_epoch
        if number == 0:
            self._streams, self._state = self._open(self.steps // self.per_epoch), None
        factor = rate(self.config, self.steps, self.total)
        for optimizer, lr in self._optimizers:
            set_lr(optimizer, lr * factor)
            optimizer.zero_grad()
        self.model.train()
        inputs_BT, targets_BT = (ids.to(self.config.device) for ids in self._streams[number])
        hidden_BTD, (hidden, cell) = self._hidden(inputs_BT, self._state)
        self._check_finite("LSTM's output", hidden_BTD)
        loss = self.head(hidden_BTD, targets_BT)
        backward(loss)
        norm = clip_grad_norm_(self._parameters(), self.config.clip)
        self._check_finite("gradient", norm)
        # torch wants to be told whether to check what SparseAdam makes.
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

        None where `stop` came true meanwhile. At most 7 words at the text's end are left out.
        TrainingFailed where it is not finite.
        """
        self.model.eval()
        streams = TextStreams(self.corpus.valid, _valid_streams(self.corpus.valid), VALID_STEPS)
        state, total, words = None, 0.0, 0
        for inputs_BT, targets_BT in streams.all():
            if stop():
                return None
            inputs, targets = inputs_BT.to(self.config.device), targets_BT.to(self.config.device)
            hidden_BTD, state = self.model.hidden(inputs, state)
            self._check_finite("LSTM's output", hidden_BTD)
            loss = self.head.full_loss(hidden_BTD, targets)
            self._check_finite("full loss", loss)
            total += loss.item() * targets.numel()
            words += targets.numel()
            progress("validate", words, len(self.corpus.valid))
        return total / words

    @property
    def servable(self) -> bool:
        """Whether the loss trains a softmax of h.w + b."""
        return self.head.unservable is None

    def language_model(self) -> LanguageModel:
        """What is to be served; InvalidRequest if not `servable`."""
        exported = self.head.export()
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
        """Tensors, numbers and words: all that the next step depends on."""
        return {
            "steps": self.steps,
            "model": self.model.state_dict(),
            "head": self.head.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer, _ in self._optimizers],
            "random": random_state(self.config.device),
            "state": self._state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where the other run was."""
        self.steps = state["steps"]
        self.model.load_state_dict(state["model"])
        self.head.load_state_dict(state["head"])
        for (optimizer, _), saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        set_random_state(state["random"], self.config.device)
        if state["state"] is not None:
            hidden, cell = (tensor.to(self.config.device) for tensor in state["state"])
            self._state = hidden, cell
        self._streams = self._open(self.steps // self.per_epoch)

    def _hidden(self, inputs_BT: Tensor, state: State | None) -> tuple[Tensor, State]:
        device = torch.device(self.config.device).type
        with torch.autocast(device, torch.bfloat16, enabled=self.config.bfloat16):
            return self.model.hidden(inputs_BT, state)

    def _check_finite(self, what: str, numbers: Tensor) -> None:
        if not bool(numbers.isfinite().all()):
            raise TrainingFailed(f"the {what} of step {self.steps} is not finite: a lower lr?")

    def _open(self, epoch: int) -> TextStreams:
        """The text as the epoch, from 0 on, reads it."""
        config, ids = self.config, self.corpus.train
        return TextStreams(
            ids, config.streams, config.steps, epoch_shift(len(ids), config.seed, epoch)
        )

    def _parameters(self) -> list[nn.Parameter]:
        return list(dict.fromkeys([*self.model.parameters(), *self.head.parameters()]))


def _valid_streams(ids: Int32) -> int:
    return max(1, min(VALID_STREAMS, len(ids) // (VALID_STEPS + 1)))


def _check(config: TrainConfig, corpus: Corpus) -> None:
    needed = config.streams * config.steps + 1
    if len(corpus.train) < needed:
        got = f"{len(corpus.train):,} words to train on"
        raise InvalidRequest("text", got, f"{needed:,}, streams times steps and one, or more")
    if len(corpus.valid) < 2:
        raise InvalidRequest("valid", f"{len(corpus.valid)} words", "2 words or more")
    check_device(config.device)
