"""Check that an nn.Linear computes W h + b and nothing else, by its hooks and by its numbers."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from logitsieve.api.errors import InvalidRequest

PLAIN = "an nn.Linear that computes W h + b and nothing else; merge adapters into its weight"
COMPUTE_WEIGHTS = (WeightNorm, SpectralNorm)  # hooks that set the weight before each call
HOOKS = ("_forward_pre_hooks", "_forward_hooks")
SIZES = 1.0, 64.0  # of contexts: caps show at large logits
ROUNDING = 8  # in units of the type's last place


def refuse_more_than_linear(layer: nn.Linear) -> None:
    """Raise InvalidRequest, naming the addition, if the layer computes more than W h + b."""
    if found := _more(layer):
        raise InvalidRequest("model", f"an output layer with {found}", PLAIN)
    weight, bias = layer.weight, layer.bias
    if weight.is_meta:
        raise InvalidRequest("model", "an output layer without its weights (offloaded)", PLAIN)
    generator = torch.Generator().manual_seed(0)
    hidden_states = torch.randn(2, layer.in_features, generator=generator).to(weight)
    contexts = torch.cat([hidden_states, weight[[0, -1]]])
    for size in SIZES:
        got = layer(size * contexts)
        expected = nn.functional.linear(size * contexts, layer.weight, bias)
        gap = float((got.double() - expected.double()).abs().max())
        rounding = ROUNDING * torch.finfo(weight.dtype).eps * float(expected.abs().max())
        if got.shape != expected.shape or not gap <= rounding:
            raise InvalidRequest("model", f"an output layer {gap:.4g} away from W h + b", PLAIN)


def _more(layer: nn.Linear) -> str:
    kind, weight = type(layer), layer.weight
    if kind.forward is not nn.Linear.forward or kind.__call__ is not nn.Module.__call__:
        return f"a forward of its own, {kind.__module__}.{kind.__qualname__}"
    if "forward" in vars(layer):
        return f"a replaced forward, {_name(vars(layer)['forward'])}"
    for name in HOOKS:
        for hooks in (getattr(layer, name), getattr(modules, f"_global{name}")):
            for hook in hooks.values():
                if not isinstance(hook, COMPUTE_WEIGHTS):
                    return f"a hook in {name}, {_name(hook)}"
    if type(weight) not in (Tensor, nn.Parameter):
        return f"a weight of the type {type(weight).__module__}.{type(weight).__qualname__}"
    return ""


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))
