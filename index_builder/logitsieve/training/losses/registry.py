"""The losses by name, and their options in `logitsieve train --loss-option`."""

import inspect
import json
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from types import NoneType, UnionType
from typing import Any

from torch import Tensor

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.losses.baselines import (
    NCE,
    DSoftmax,
    Exp,
    ImportanceSoftmax,
    Quadratic,
    TopK,
)
from logitsieve.training.losses.loss import ChunkedSoftmax, FullSoftmax, LossOptions, SoftmaxLoss
from logitsieve.training.losses.sampled import SampledSoftmax
from logitsieve.training.proposals.frequency import (
    FrequencyProposal,
    log_uniform_weights,
    uniform_weights,
    unigram_weights,
)
from logitsieve.training.proposals.kernel import RF_SCALE, RandomFeatures
from logitsieve.training.proposals.kmeans import KMeans
from logitsieve.training.proposals.lns import LNS
from logitsieve.training.proposals.lsh import LSH
from logitsieve.training.proposals.proposal import Proposal

TEXT_TYPES = (bool, int, float, str, NoneType)
COMMON = ("bias", "scale")


class Option(typing.NamedTuple):
    """An option of a loss, with the types or words that it allows."""

    kinds: tuple[Any, ...]
    default: Any

    @property
    def shown_type(self) -> str:
        kinds = [repr(kind) if isinstance(kind, str) else kind.__name__ for kind in self.kinds]
        return " or ".join("none" if kind == "NoneType" else kind for kind in kinds)

    def read(self, text: str) -> Any:
        try:
            value = None if text.lower() == "none" else json.loads(text.lower())
        except ValueError:
            value = text
        if float in self.kinds and type(value) is int:
            value = float(value)
        kind = Sequence if isinstance(value, list) else type(value)
        if kind not in self.kinds and value not in self.kinds:
            raise ValueError(self.shown_type)
        return value


@dataclass(frozen=True)
class Loss:
    """A loss of the registry, called with the options of its class and of its proposal.

    weights: makes a FrequencyProposal's weights from V and class_counts.
    """

    kind: type[SoftmaxLoss]
    proposal: type[Proposal] | None = None
    weights: Callable[[int, Tensor | None], Tensor] | None = None
    common: LossOptions = field(default_factory=LossOptions)

    def __call__(
        self,
        in_features: int,
        n_classes: int,
        *,
        class_counts: Tensor | None = None,
        seed: int = 0,
        **options: Any,
    ) -> SoftmaxLoss:
        options = {**self.common, **options}
        if issubclass(self.kind, SampledSoftmax):
            options["seed"] = seed
        if self.proposal is None:
            if class_counts is not None and "class_counts" in self._parameters():
                options["class_counts"] = class_counts
            return self.kind(in_features, n_classes, **options)
        own = {each.name for each in fields(self.proposal)}
        chosen = {name: options.pop(name) for name in own & options.keys()}
        if self.weights is not None:
            chosen["weights"] = self.weights(n_classes, class_counts)
        return SampledSoftmax(in_features, n_classes, self.proposal(**chosen), **options)

    @property
    def options(self) -> dict[str, Option]:
        hints: dict[str, tuple[Any, Any]] = {}
        if self.proposal is not None:
            types = typing.get_type_hints(self.proposal)
            hints = {each.name: (types[each.name], each.default) for each in fields(self.proposal)}
        types = typing.get_type_hints(self.kind.__init__)
        for name, parameter in self._parameters().items():
            if parameter.kind is parameter.KEYWORD_ONLY and name != "seed":
                hints[name] = types[name], parameter.default
        types, base = typing.get_type_hints(LossOptions), inspect.signature(SoftmaxLoss)
        for name in COMMON:
            if name not in self.common or name == "scale":
                default = self.common.get(name, base.parameters[name].default)
                hints[name] = types[name], default
        options = {name: Option(kinds_of(hint), default) for name, (hint, default) in hints.items()}
        return {name: each for name, each in options.items() if all(map(_is_text, each.kinds))}

    def _parameters(self) -> dict[str, inspect.Parameter]:
        return dict(inspect.signature(self.kind).parameters)


def kinds_of(hint: Any) -> tuple[Any, ...]:
    """Return the types, or the words of a Literal, that a hint allows."""
    if typing.get_origin(hint) in (typing.Union, UnionType):
        return tuple(kind for each in typing.get_args(hint) for kind in kinds_of(each))
    if typing.get_origin(hint) is typing.Literal:
        return typing.get_args(hint)
    return (typing.get_origin(hint) or hint or NoneType,)


def _is_text(kind: Any) -> bool:
    return isinstance(kind, str) or kind in (*TEXT_TYPES, Sequence)


# By the names in `logitsieve train --loss`. tests/training/test_registry.py says what each needs.
LOSSES: dict[str, Loss] = {
    "full": Loss(FullSoftmax),
    "chunked": Loss(ChunkedSoftmax),
    "uniform": Loss(SampledSoftmax, FrequencyProposal, uniform_weights),
    "log-uniform": Loss(SampledSoftmax, FrequencyProposal, log_uniform_weights),
    "unigram": Loss(SampledSoftmax, FrequencyProposal, unigram_weights),
    "importance": Loss(ImportanceSoftmax),
    "exp": Loss(SampledSoftmax, Exp),
    "nce": Loss(NCE),
    "d-softmax": Loss(DSoftmax),
    "rf": Loss(SampledSoftmax, RandomFeatures, common={"scale": RF_SCALE}),
    "quadratic": Loss(SampledSoftmax, Quadratic, common={"bias": False, "absolute": True}),
    "lsh": Loss(SampledSoftmax, LSH),
    "lns": Loss(SampledSoftmax, LNS),
    "kmeans": Loss(SampledSoftmax, KMeans),
    "top-k": Loss(SampledSoftmax, TopK),
}


def read_options(name: str, pairs: Sequence[str]) -> dict[str, Any]:
    """Parse a loss's options, such as ["k=100", "per_row=true"]. InvalidRequest."""
    if name not in LOSSES:
        raise InvalidRequest("loss", name, ", ".join(LOSSES))
    options, chosen = LOSSES[name].options, dict[str, Any]()
    for pair in pairs:
        key, equals, text = (part.strip() for part in pair.partition("="))
        if not equals or key not in options:
            allowed = ", ".join(f"{each} ({options[each].shown_type})" for each in options)
            raise InvalidRequest("loss_option", repr(pair), f"NAME=VALUE, for {name}: {allowed}")
        try:
            chosen[key] = options[key].read(text)
        except ValueError as error:
            raise InvalidRequest("loss_option", repr(pair), str(error)) from error
    return chosen
