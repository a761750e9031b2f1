"""`attach` takes an output layer that computes W h + b and nothing else."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules
from torch.nn.utils import parametrizations

from logitsieve.api.errors import InvalidRequest
from logitsieve.client.huggingface import attach
from logitsieve.client.huggingface_head import refuse_more_than_linear
from tests.client.dense import attach_dense, decoder_of, generate


class LowRank(nn.Linear):
    def forward(self, hidden_states: Tensor) -> Tensor:
        return super().forward(hidden_states) + 1e-3 * hidden_states[..., :1]


class Called(nn.Linear):
    def __call__(self, hidden_states: Tensor) -> Any:
        return -super().__call__(hidden_states)


class Quantised(nn.Parameter):
    pass


def layer(kind: type[nn.Linear] = nn.Linear, **options: Any) -> nn.Linear:
    torch.manual_seed(0)
    return kind(16, 60, **options)


def changed(change: Callable[[nn.Linear], Any], **options: Any) -> nn.Linear:
    made = layer(**options)
    change(made)
    return made


def watching(_: nn.Module, hidden_states: Any, *more: Any) -> Any:
    return None


REFUSED: dict[str, Callable[[], nn.Linear]] = {
    "a forward of its own, .*LowRank": lambda: layer(LowRank),
    "a forward of its own, .*Called": lambda: layer(Called),
    "a replaced forward": lambda: changed(lambda one: setattr(one, "forward", one.forward)),
    "a hook in _forward_hooks, watching": lambda: changed(
        lambda one: one.register_forward_hook(watching, with_kwargs=True)
    ),
    "a hook in _forward_pre_hooks, watching": lambda: changed(
        lambda one: one.register_forward_pre_hook(watching)
    ),
    "a weight of the type .*Quantised": lambda: changed(
        lambda one: setattr(one, "weight", Quantised(one.weight.detach()))
    ),
    "without its weights": lambda: layer(device="meta"),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_computes_more_is_named(reason: str) -> None:
    with torch.no_grad(), pytest.raises(InvalidRequest, match=reason):
        refuse_more_than_linear(REFUSED[reason]())


@contextmanager
def everywhere(hook: Any) -> Iterator[None]:
    handle = modules.register_module_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def test_a_hook_of_all_modules_is_named() -> None:
    with (
        everywhere(watching),
        torch.no_grad(),
        pytest.raises(InvalidRequest, match="_forward_hooks, watching"),
    ):
        refuse_more_than_linear(layer())


def test_numbers_that_are_not_the_weights_are_refused() -> None:
    """A weight that is another at each call, as of an adapter that is not merged."""

    class Drifting(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return weight + torch.rand(1)

    made = layer()
    torch.nn.utils.parametrize.register_parametrization(made, "weight", Drifting())
    with torch.no_grad(), pytest.raises(InvalidRequest, match="away from W h"):
        refuse_more_than_linear(made)


NORMED = {
    "plain": lambda one: one,
    "parametrized": parametrizations.weight_norm,
    "hook": torch.nn.utils.weight_norm,
    "half": lambda one: one.bfloat16(),
    "compiled": lambda one: one.compile(backend="eager"),
}


@pytest.mark.parametrize("how", NORMED)
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_weights_that_are_computed_before_the_call_pass(how: str) -> None:
    made = changed(NORMED[how])
    with torch.no_grad():
        refuse_more_than_linear(made)


def test_attach_refuses_and_leaves_the_model(language_model: Any) -> None:
    decoder, plain = decoder_of(language_model), generate(language_model)
    output = language_model.get_output_embeddings()
    handle = output.register_forward_hook(lambda _, __, logits: -logits)
    try:
        with pytest.raises(InvalidRequest, match="model: got an output layer with a hook"):
            attach(language_model, decoder)
    finally:
        handle.remove()
    assert language_model.get_output_embeddings() is output
    assert generate(language_model) == plain


@pytest.mark.parametrize("where", ["model", "head"])
@pytest.mark.parametrize("options", [{}, {"do_sample": True, "top_k": 0}], ids=str)
@pytest.mark.parametrize("ids", [slice(None), 77], ids=["all", "one"])  # none of the best
def test_hooks_that_change_logits_later_are_seen(
    language_model: Any, where: str, options: dict[str, Any], ids: Any
) -> None:
    """A hook that comes after `attach`, and changes the second token alone."""
    calls: list[int] = []

    def change(_: nn.Module, __: Any, output: Any) -> Any:
        calls.append(1)
        logits = output if isinstance(output, Tensor) else output.logits
        if len(calls) == 2:
            logits[..., ids] *= 0.5
        return output

    with attach_dense(language_model) as attached:
        target = language_model if where == "model" else attached.head
        handle = target.register_forward_hook(change)
        try:
            with pytest.raises(InvalidRequest, match="logits changed after the output layer"):
                generate(language_model, **options)
        finally:
            handle.remove()
        generate(language_model, **options)
