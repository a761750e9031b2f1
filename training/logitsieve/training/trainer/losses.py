"""Losses by name, with options as text, for `--loss` and `--loss-option`."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import torch

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Int64
from logitsieve.training import LOSSES
from logitsieve.training.losses.loss import SoftmaxLoss
from logitsieve.training.losses.registry import Loss, Option

WORDS = {"true": True, "false": False, "none": None}


def make_loss(
    name: str, options: Sequence[str], *, dim: int, counts: Int64, seed: int, device: str
) -> SoftmaxLoss:
    """Make a loss; InvalidRequest names `loss` or `loss_option`, or what the loss refuses.

    Losses that go by frequency get `counts` [V], in which a class that does not occur counts once.
    """
    loss, given = loss_named(name), read_options(name, options)
    if loss.draws:
        given["seed"] = seed
    class_counts = torch.from_numpy(counts.astype("int64")).clamp_(min=1)
    return loss(dim, len(counts), class_counts=class_counts, device=device, **given)


def loss_named(name: str) -> Loss:
    """Return the entry of LOSSES; InvalidRequest if there is none."""
    if name not in LOSSES:
        raise InvalidRequest("loss", name, ", ".join(LOSSES))
    return LOSSES[name]


def read_options(name: str, pairs: Sequence[str]) -> dict[str, Any]:
    """Parse options: {"k": 100, "per_row": True} from ["k=100", "per_row=true"]."""
    options, chosen = loss_named(name).options, dict[str, Any]()
    for pair in pairs:
        key, equals, text = (part.strip() for part in pair.partition("="))
        if not equals or key not in options:
            allowed = ", ".join(f"{each} ({shown_type(options[each])})" for each in options)
            raise InvalidRequest("loss_option", repr(pair), f"NAME=VALUE, for {name}: {allowed}")
        chosen[key] = _value(pair, text, options[key])
    return chosen


def shown_type(option: Option) -> str:
    """Return the types for readers: int, float or none, one of the words."""
    kinds = [repr(kind) if isinstance(kind, str) else kind.__name__ for kind in option.kinds]
    return " or ".join("none" if kind == "NoneType" else kind for kind in kinds)


def _value(pair: str, text: str, option: Option) -> Any:
    try:
        value = WORDS[text.lower()] if text.lower() in WORDS else ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = text
    if float in option.kinds and type(value) is int:
        value = float(value)
    kind = Sequence if isinstance(value, (list, tuple)) else type(value)
    if kind not in option.kinds and value not in option.kinds:
        raise InvalidRequest("loss_option", repr(pair), shown_type(option))
    return value
