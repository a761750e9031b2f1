"""The two optimizers of a training, and the schedule of their learning rates."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.trainer.config import TrainConfig


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
