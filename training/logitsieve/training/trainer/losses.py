"""Losses by name, with options as text, for `--loss` and `--loss-option`."""

from __future__ import annotations

import ast
import inspect
import typing
from collections.abc import Mapping, Sequence
from types import NoneType, UnionType
from typing import Any

import torch

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Int64
from logitsieve.training import LOSSES
from logitsieve.training.losses.loss import SoftmaxLoss

# Arguments of the constructors that the trainer decides, not the user.
TRAINER_DECIDES = {
    *("in_features", "n_classes", "class_counts", "seed", "device", "dtype"),
    *("sparse", "absolute", "ignore_index", "reduction"),
}
TEXT_TYPES = (bool, int, float, str, NoneType, Sequence)  # values that text can express


def make_loss(
    name: str, options: Sequence[str], *, dim: int, counts: Int64, seed: int, device: str
) -> SoftmaxLoss:
    """Make a loss; InvalidRequest names `loss` or `loss_option`, or what the loss refuses.

    Losses that use frequencies get `counts` [V], where a class that does not occur counts once.
    """
    loss = loss_class(name)
    decided: dict[str, Any] = {
        "class_counts": torch.from_numpy(counts.astype("int64")).clamp_(min=1),
        "seed": seed,
        "device": device,
    }
    taken = _hints(loss)
    given = {key: value for key, value in decided.items() if key in taken}
    return loss(dim, len(counts), **{**given, **read_options(name, options)})


def loss_class(name: str) -> type[SoftmaxLoss]:
    """The class of that name in LOSSES."""
    if name not in LOSSES:
        raise InvalidRequest("loss", name, ", ".join(LOSSES))
    return LOSSES[name]


def options_of(name: str) -> dict[str, Any]:
    """The options of a loss and their types."""
    return {
        key: hint
        for key, hint in _hints(loss_class(name)).items()
        if key not in TRAINER_DECIDES
        and all(isinstance(kind, str) or kind in TEXT_TYPES for kind in _kinds(hint))
    }


def default_of(name: str, option: str) -> str:
    """The default of a loss's option, or "" if it has none."""
    for parent in loss_class(name).__mro__:
        parameter = inspect.signature(parent).parameters.get(option)
        if parameter is not None:
            return "" if parameter.default is parameter.empty else repr(parameter.default)
    return ""


def read_options(name: str, pairs: Sequence[str]) -> dict[str, Any]:
    """Parse options: {"k": 100, "per_row": True} from ["k=100", "per_row=true"]."""
    hints, options = options_of(name), dict[str, Any]()
    for pair in pairs:
        option, equals, text = (part.strip() for part in pair.partition("="))
        if not equals or option not in hints:
            allowed = ", ".join(f"{key} ({shown_type(hint)})" for key, hint in hints.items())
            raise InvalidRequest("loss_option", repr(pair), f"NAME=VALUE, for {name}: {allowed}")
        options[option] = _value(pair, text, hints[option])
    return options


def shown_type(hint: Any) -> str:
    """A type for readers: int, float or none, one of the words."""
    kinds = [repr(kind) if isinstance(kind, str) else kind.__name__ for kind in _kinds(hint)]
    return " or ".join("none" if kind == "NoneType" else kind for kind in kinds)


def _value(pair: str, text: str, hint: Any) -> Any:
    kinds = _kinds(hint)
    words = {"true": True, "false": False, "none": None}
    try:
        value = words[text.lower()] if text.lower() in words else ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = text
    if float in kinds and type(value) is int:
        value = float(value)
    kind = Sequence if isinstance(value, (list, tuple)) else type(value)
    if kind not in kinds and value not in [word for word in kinds if isinstance(word, str)]:
        raise InvalidRequest("loss_option", repr(pair), shown_type(hint))
    return value


def _kinds(hint: Any) -> tuple[Any, ...]:
    """The types, or the words of a Literal, that a hint allows."""
    if typing.get_origin(hint) in (typing.Union, UnionType):
        return tuple(kind for each in typing.get_args(hint) for kind in _kinds(each))
    if typing.get_origin(hint) is typing.Literal:
        return typing.get_args(hint)
    return (typing.get_origin(hint) or hint or NoneType,)


def _hints(loss: type[SoftmaxLoss]) -> Mapping[str, Any]:
    """Type hints of the constructor's arguments, with `**options` unpacked."""
    hints: dict[str, Any] = {}
    for key, hint in typing.get_type_hints(loss.__init__).items():
        if typing.get_origin(hint) is typing.Unpack:
            hints |= typing.get_type_hints(typing.get_args(hint)[0])
        elif key != "return":
            hints[key] = hint
    return hints
