"""Record the inputs of a PyTorch model's output layer, batch by batch.

Shape letters: B rows of a batch, D hidden size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from threading import Lock
from typing import Any, Self

import torch
from torch import Tensor, nn

from logitsieve.api.results import Float32


class LayerInputs:
    """A model that runs one thread at a time; leaving the context restores its `layer`."""

    def __init__(self, model: nn.Module, layer: nn.Linear) -> None:
        self._model, self._layer, self._lock = model, layer, Lock()
        self._undo, self._caught = ExitStack(), list[Tensor]()
        self._undo.enter_context(
            layer.register_forward_pre_hook(lambda _, inputs: self._caught.append(inputs[0]))
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._undo.close()

    def read(self, batch: Any) -> tuple[Tensor, Any]:
        """Return (the layer's inputs for a batch [B, D], the model's output)."""
        with self._lock, torch.inference_mode():
            output = call_model(self._model, batch)
            width = self._layer.in_features
            hidden_BD = torch.cat([tensor.reshape(-1, width) for tensor in self._caught])
            self._calls = len(self._caught)
            self._caught.clear()
        return hidden_BD, output

    @property
    def once(self) -> bool:
        """True if the last batch called the layer once: no other context depends on its logits."""
        return self._calls == 1

    def skip_product(self) -> None:
        """Return zeros from the layer: its product takes most of a small model's time."""
        self._undo.enter_context(_without_product(self._layer))


def rows_of_batch(inputs: LayerInputs, batch: Any) -> Float32:
    hidden: Float32 = inputs.read(batch)[0].float().cpu().numpy()
    return hidden


def make_layer_inputs(load: Callable[[], nn.Module], name: str, skip: bool) -> LayerInputs:
    """Load the model in another process and record its layer `name`."""
    torch.set_num_threads(1)
    model = load().eval()
    layer = model.get_submodule(name)
    assert isinstance(layer, nn.Linear)
    inputs = LayerInputs(model, layer)
    if skip:
        inputs.skip_product()
    return inputs


def call_model(model: nn.Module, batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, (tuple, list)) else model(batch)


@contextmanager
def _without_product(layer: nn.Linear) -> Iterator[None]:
    def zeros(input: Tensor) -> Tensor:
        return input.new_zeros(1).expand(*input.shape[:-1], layer.out_features)

    replaced = vars(layer).get("forward")  # set by an adapter, such as `attach`
    layer.forward = zeros  # type: ignore[method-assign]
    try:
        yield
    finally:
        del layer.forward
        if replaced is not None:
            layer.forward = replaced  # type: ignore[method-assign]
