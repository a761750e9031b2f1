"""A training run in a folder, which may be killed at any time and resumed.

| file | contents |
|---|---|
| `settings.json` | all options |
| `train.npy`, `valid.npy`, `counts.npy`, `vocab.txt` | the texts as ids; the words by id |
| `checkpoint.pt` | all that the next step depends on |
| `model.safetensors` | the model with the best perplexity so far |

On a CPU, a resumed run equals, bit for bit, one that was never stopped.
"""

import json
import math
import time
from collections.abc import Callable
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
from logitsieve.training import TrainConfig
from logitsieve.training.autograd.classes import clip_grad_norm_
from logitsieve.training.losses.registry import LOSSES, read_options
from logitsieve.training.trainer.corpus import Corpus, TextStreams, encode
from logitsieve.training.trainer.language_model import LanguageModel, Recurrent, State
from logitsieve.utils.options import Progress, no_progress

VALID_STREAMS, VALID_STEPS = 8, 35
SMOOTH = 100
SETTINGS, CHECKPOINT = "settings.json", "checkpoint.pt"


@dataclass
class TrainingStatus:
    """Progress of a run; perplexities are infinite at first.

    rows: words of a step. per_epoch, total, steps, validated: steps. loss: nats per word, averaged
    over SMOOTH steps. seconds: of training steps alone.
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
        """Raise InvalidRequest if options do not go together, or do not suit the text."""
        self.config, self.corpus = config, corpus
        self._check()
        torch.set_num_threads(config.threads)
        torch.manual_seed(config.seed)
        counts = torch.from_numpy(np.maximum(corpus.counts, 1))
        chosen = {"seed": config.seed, **read_options(config.loss, config.loss_option)}
        self.loss = LOSSES[config.loss](
            config.dim, len(counts), class_counts=counts, device=config.device, **chosen
        )
        sizes = len(corpus.vocabulary), config.dim, config.layers, config.dropout
        self.model = Recurrent(*sizes, sparse=self.loss.classes.sparse).to(config.device)
        if config.tied:
            self.loss.tie(self.model.embedding)
        lstm, decay = self.model.lstm.parameters(), config.weight_decay
        rows = dict.fromkeys([self.model.embedding.weight, *self.loss.parameters()])
        self._optimizers = (
            AdamW(lstm, config.lr, weight_decay=decay, fused=True),
            Adagrad(list(rows), config.head_lr),
        )
        self._parts: list[nn.Module | Optimizer] = [self.model, self.loss, *self._optimizers]
        self.loss.track(self._optimizers[1], every=config.index_every, growth=config.index_growth)
        per_epoch = (len(corpus.train) - 1) // config.batch_size // config.bptt
        limit = math.inf if config.words is None else math.ceil(config.words / config.rows)
        total = int(min(config.epochs * per_epoch, limit))
        self.status = TrainingStatus(config.rows, per_epoch, total)
        self._state: State | None = None

    def _check(self) -> None:
        needed = self.config.rows + 1
        if (words := len(self.corpus.train)) < needed:
            allowed = f"{needed:,}, batch_size times bptt and one, or more"
            raise InvalidRequest("text", f"{words:,} words to train on", allowed)
        if (words := len(self.corpus.valid)) < 2:
            raise InvalidRequest("valid", f"{words} words", "2 words or more")
        try:
            torch.zeros(1, device=self.config.device).item()
        except (RuntimeError, AssertionError) as error:
            allowed = "cpu, or a GPU that torch finds"
            raise InvalidRequest("device", self.config.device, allowed) from error

    def step(self) -> float:
        """Make one update; return its loss in nats per word. TrainingFailed if it is not finite."""
        begun, status = time.monotonic(), self.status
        factor = lr_factor(self.config, status.steps, status.total)
        rates = (self.config.lr, self.config.head_lr)
        for optimizer, lr in zip(self._optimizers, rates, strict=True):
            optimizer.param_groups[0]["lr"] = lr * factor
            optimizer.zero_grad()
        self.model.train()
        inputs_BT, targets_BT = self._batch()
        hidden_BTD, (hidden, cell) = self.model.hidden_states(inputs_BT, self._state)
        self._check_finite("LSTM's output", hidden_BTD)
        loss = self.loss(hidden_BTD, targets_BT)
        backward(loss)
        parameters = dict.fromkeys([*self.model.parameters(), *self.loss.parameters()])
        self._check_finite("gradient", clip_grad_norm_(parameters, self.config.clip))
        # torch warns unless the checks of sparse tensors are set explicitly.
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
        streams = TextStreams(ids, config.batch_size, shift, config.device)
        return streams.read(number * config.bptt, config.bptt)

    @torch.no_grad()
    def validate(self) -> float:
        """Return the perplexity on the held-out text. TrainingFailed if it is not finite."""
        self.model.eval()
        ids = self.corpus.valid
        count = max(1, min(VALID_STREAMS, len(ids) // (VALID_STEPS + 1)))
        streams = TextStreams(ids, count, device=self.config.device)
        state, total = None, 0.0
        for start in range(0, streams.length, VALID_STEPS):
            inputs_BT, targets_BT = streams.read(start, VALID_STEPS)
            hidden_BTD, state = self.model.hidden_states(inputs_BT, state)
            self._check_finite("LSTM's output", hidden_BTD)
            total += self.loss.full_loss(hidden_BTD, targets_BT).item() * targets_BT.numel()
        mean = total / (count * streams.length)
        perplexity = torch.tensor(mean, dtype=torch.float64).exp()
        self._check_finite("perplexity", perplexity)
        return float(perplexity)

    def language_model(self) -> LanguageModel:
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
            "random": torch.get_rng_state(),
            "state": self._state,
        }
        fresh = file.with_name(f".tmp-{file.name}")
        torch.save(state, fresh)
        fresh.replace(file)

    def load(self, file: Path) -> None:
        """Continue from a checkpoint. InvalidRequest if it is damaged."""
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
    """Return the factor of learning rates: a linear rise, then a cosine."""
    rising = math.ceil(config.warm_up * total)
    if step < rising:
        return (step + 1) / rising
    return (1 + math.cos(math.pi * (step - rising) / max(1, total - rising))) / 2


def begin(folder: Path, config: TrainConfig, *, progress: Progress = no_progress) -> None:
    """Encode the run's text, then write its options. InvalidRequest if the folder is in use."""
    if (folder / CHECKPOINT).exists():
        raise InvalidRequest("out", f"{folder}, which holds a run", "another folder, or --resume")
    if folder.exists() and any(folder.iterdir()):
        load_config(folder, "out")
    read_options(config.loss, config.loss_option)
    corpus = encode(config, progress)
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / SETTINGS
    settings.unlink(missing_ok=True)
    corpus.save(folder)
    settings.write_text(json.dumps(asdict(config), indent=2, default=str) + "\n", encoding="utf-8")


def load_config(folder: Path, field: str = "resume") -> TrainConfig:
    """Return the options of the run in a folder. InvalidRequest names `field` if there is none."""
    file = folder / SETTINGS
    try:
        saved = json.loads(file.read_text(encoding="utf-8"))
        paths = {name: saved[name] and Path(saved[name]) for name in ("text", "valid")}
        return TrainConfig(**{**saved, **paths, "loss_option": tuple(saved["loss_option"])})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InvalidRequest(field, f"{file} ({error})", "a folder with a run") from error


def train(
    folder: Path,
    *,
    show: Callable[[TrainingStatus], None] = lambda status: None,
    stop: Callable[[], bool] = lambda: False,
    to_be_served: bool = False,
) -> TrainingStatus:
    """Train the rest of the run in `folder`, from its checkpoint on.

    `stop` is called before each step; once it returns True, the state is saved and `train` returns.
    `show` gets the status, always the same object, after steps and validations. InvalidRequest if
    the run is `to_be_served` but the loss does not train a softmax of h.w + b.
    """
    config = load_config(folder)
    trainer = Trainer(config, Corpus.open(folder))
    status, unservable = trainer.status, trainer.loss.unservable
    if to_be_served and unservable is not None:
        allowed = "a loss that trains a softmax of logits; any other cannot be served"
        raise InvalidRequest("loss", f"{config.loss} ({unservable})", allowed)
    checkpoint = folder / CHECKPOINT
    if checkpoint.exists():
        trainer.load(checkpoint)
    while status.steps < status.total and not stop():
        trainer.step()
        show(status)
        due = status.validated + (config.valid_every or status.per_epoch)
        if status.steps in (due, status.total):
            status.validated, status.perplexity = status.steps, trainer.validate()
            if status.perplexity < status.best_perplexity:
                status.best_perplexity = status.perplexity
                if unservable is None:
                    trainer.language_model().save(folder)
            show(status)
        if status.steps % config.checkpoint_every == 0:
            trainer.save(checkpoint)
    trainer.save(checkpoint)
    return status
