"""Runs a PyTorch model over data, and records its output layer's inputs, which are contexts."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any, Self

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Float32
from logitsieve.index.files import new_folder
from logitsieve.index_builder.arrays import save
from logitsieve.index_builder.capture.stream_sample import write_sample
from logitsieve.index_builder.config import CaptureConfig
from logitsieve.index_builder.workers import Shared, Workers, is_here
from logitsieve.utils.environment import require
from logitsieve.utils.options import ProgressOption, to_progress

require("training", "torch")

import torch  # noqa: E402  after `require` with its pip line
from torch import Tensor, nn  # noqa: E402

__all__ = ["CaptureConfig", "capture"]

CHECKED_ROWS = 16  # rows of the first batch on which W h + b is compared with the output
LARGER = 32.0  # factor of h that would reveal a softcap
CHUNK_ROWS = 8192


def capture(
    model: nn.Module,
    batches: Iterable[Any],
    out: Path | str,
    *,
    output_layer: str | nn.Linear | None = None,
    config: CaptureConfig | None = None,
    progress: ProgressOption = "auto",
    executor: Executor | None = None,
    load: Callable[[], nn.Module] | None = None,
) -> dict[str, Any]:
    """Write contexts (`00000.npy` ...), `weight.npy`, `bias.npy` and `capture.json` to `out`.

    Each batch is the model's argument, a tuple of arguments, or a mapping of keywords, without
    padding. `output_layer` is the nn.Linear that makes the logits, or its name (default: the last
    one called with as many outputs as logits). `progress` gets (stage, rows seen, 0). Returns the
    contents of `capture.json`.

    `executor` runs the batches in parallel; its processes make the model by `load`, an importable
    function, and use one thread. InvalidRequest if `out` exists or the output is not W h + b.
    """
    config, progress = config or CaptureConfig(), to_progress(progress, "capture")
    out, iterator = Path(out), iter(batches)
    if load is None and not is_here(executor):
        allowed = "`load` beside it, which makes the model in other processes"
        raise InvalidRequest("executor", type(executor).__name__, allowed)
    if out.exists():
        raise InvalidRequest("out", out, "a path that does not exist")
    with new_folder(out) as folder, _evaluating(model):
        if (first := next(iterator, None)) is None:
            raise InvalidRequest("batches", "no batch", "one or more")
        name, layer = _output_layer(model, first, output_layer)
        weight, bias = _parameters(model, layer)
        with LayerInputs(model, layer) as inputs:
            hidden_BD, output = inputs.read(first)
            _refuse_unless_linear(weight, bias, hidden_BD, output)
            if skip := inputs.once:
                _refuse_unless_proportional(bias, output, inputs.read(first, LARGER)[1])
                inputs.skip_product()
            save(folder / "weight.npy", weight.float().cpu().numpy())
            save(folder / "bias.npy", bias.float().cpu().numpy())
            shared = Shared(inputs, make_layer_inputs, (), (load, name, skip))
            calls = ((shared, batch) for batch in chain([first], iterator))
            return write_sample(
                folder,
                layer.in_features,
                config,
                Workers(executor, folder).map(rows_of_batch, calls),
                progress,
                vocab_size=layer.out_features,
                dim=layer.in_features,
                model=type(model).__qualname__,
                output_layer=name,
                **({"window": batches.window} if hasattr(batches, "window") else {}),
            )


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        for module in training:
            module.training = True


def _logits(output: Any) -> Tensor:
    output = getattr(output, "logits", output)
    if isinstance(output, Mapping):
        output = output.get("logits")
    elif isinstance(output, (tuple, list)) and output:
        output = output[0]
    if not isinstance(output, Tensor):
        raise InvalidRequest(
            "model", f"output {type(output).__name__}", "logits, .logits, or a tuple led by them"
        )
    return output


def _output_layer(
    model: nn.Module, batch: Any, chosen: str | nn.Linear | None
) -> tuple[str, nn.Linear]:
    layers = {name: m for name, m in model.named_modules() if isinstance(m, nn.Linear)}
    names = {layer: name for name, layer in layers.items()}
    called: list[nn.Linear] = []
    hooks = [m.register_forward_pre_hook(lambda m, _: called.append(m)) for m in names]
    try:
        logits = _logits(call_model(model, batch))
    finally:
        for hook in hooks:
            hook.remove()
    if chosen is not None:
        layer = layers.get(chosen) if isinstance(chosen, str) else chosen
        if layer not in called:
            raise InvalidRequest("output_layer", chosen, f"called by the model: {_list(layers)}")
        return names[layer], layer
    fitting = [layer for layer in called if layer.out_features == logits.shape[-1]]
    if not fitting:
        raise InvalidRequest(
            "output_layer",
            f"no nn.Linear with {logits.shape[-1]} outputs, the size of the model's output",
            f"the name of the layer that makes the logits, one of: {_list(layers)}",
        )
    return names[fitting[-1]], fitting[-1]


def _list(layers: Mapping[str, nn.Linear]) -> str:
    return ", ".join(name or "the model itself" for name in layers) or "(it has no nn.Linear)"


def _parameters(model: nn.Module, layer: nn.Linear) -> tuple[Tensor, Tensor]:
    """Return W and b, which includes the second bias of Hugging Face's translation models."""
    weight = layer.weight.detach()
    bias = torch.zeros_like(weight[:, 0]) if layer.bias is None else layer.bias.detach()
    more = getattr(model, "final_logits_bias", None)
    return weight, bias if more is None else bias + more.detach().flatten()


def _refuse_unless_linear(weight: Tensor, bias: Tensor, hidden_BD: Tensor, output: Any) -> None:
    logits = _logits(output)
    if len(hidden_BD) == 0:
        raise InvalidRequest("batches", "no rows in the first batch", "one or more")
    if logits.shape[-1] != len(weight) or logits[..., 0].numel() != len(hidden_BD):
        raise InvalidRequest(
            "model",
            f"output {list(logits.shape)} for {len(hidden_BD)} rows into the output layer",
            f"one row of {len(weight)} logits for each",
        )
    rows = _checked(len(hidden_BD))
    got = logits.reshape(-1, len(weight))[rows].double().cpu()
    hidden_states = hidden_BD[rows].double().cpu()
    parts = [
        (hidden_states @ w.T + b, hidden_states.abs() @ w.T.abs() + b.abs())
        for w, b in zip(
            (chunk.double().cpu() for chunk in torch.split(weight, CHUNK_ROWS)),
            (chunk.double().cpu() for chunk in torch.split(bias, CHUNK_ROWS)),
            strict=True,
        )
    ]
    expected, magnitude = (torch.cat(part, dim=1) for part in zip(*parts, strict=True))
    # Sums are float32, and rounded to the model's type.
    sums, eps = torch.finfo(torch.float32).eps, _eps(logits, weight)
    size = expected.square().mean(dim=1, keepdim=True).sqrt()
    tolerance = 8 * (sums * magnitude + eps * (expected.abs() + size))
    if not ((got - expected).abs() <= tolerance).all():
        raise InvalidRequest("model", _difference(got, expected, tolerance), "logits = W h + b")


def _refuse_unless_proportional(bias: Tensor, output: Any, larger: Any) -> None:
    """Raise InvalidRequest unless LARGER h gives LARGER W h + b."""
    rows, b = _checked(_logits(output)[..., 0].numel()), bias.double().cpu()
    small, large = (
        _logits(one).reshape(-1, len(bias))[rows].double().cpu() for one in (output, larger)
    )
    tolerance = 8 * _eps(_logits(output), bias) * LARGER * (small.abs() + b.abs())
    gap = (large - LARGER * (small - b) - b).abs()
    if not (gap <= tolerance).all():
        got = f"logits of {LARGER:g} h up to {gap.max().item():.4g} away from {LARGER:g} W h + b"
        raise InvalidRequest("model", f"{got} (a softcap?)", "logits = W h + b")


def _checked(count: int) -> Tensor:
    return torch.linspace(0, count - 1, min(CHECKED_ROWS, count)).long()


def _eps(*tensors: Tensor) -> float:
    return max(torch.finfo(kind).eps for kind in (torch.float32, *(one.dtype for one in tensors)))


def _difference(got: Tensor, expected: Tensor, tolerance: Tensor) -> str:
    shift = (got - expected).mean(dim=1, keepdim=True)
    if ((got - expected - shift).abs() <= tolerance + 1e-6 * shift.abs()).all():
        return f"logits shifted by {shift[0].item():.4g} in the first row (a log_softmax?)"
    scale = (got * expected).sum() / (expected * expected).sum()
    if ((got - scale * expected).abs() <= 2 * tolerance * (1 + scale.abs())).all():
        return f"logits scaled by {scale.item():.4g} after the output layer"
    worst = (got - expected).abs().max().item()
    return f"logits up to {worst:.4g} away from W h + b (a softcap, a mask, an adapter?)"


class LayerInputs:
    """Records the inputs of a model's `layer`. Thread-safe; `with` restores the layer."""

    def __init__(self, model: nn.Module, layer: nn.Linear) -> None:
        self._model, self._layer, self._lock = model, layer, Lock()
        self._caught, self._times = list[Tensor](), 1.0
        self._hook = layer.register_forward_pre_hook(self._catch, with_kwargs=True)
        self._replaced = vars(layer).get("forward")  # set by an adapter, such as `attach`

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._hook.remove()
        vars(self._layer).pop("forward", None)
        if self._replaced is not None:
            self._layer.forward = self._replaced  # type: ignore[method-assign]

    def _catch(self, _: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
        [hidden_states] = inputs or named.values()
        self._caught.append(hidden_states)
        return None if self._times == 1 else ((self._times * hidden_states,), {})

    def read(self, batch: Any, times: float = 1.0) -> tuple[Tensor, Any]:
        """Return h of all rows, and the model's output if the layer gets `times` h."""
        with self._lock, torch.inference_mode():
            self._times = times
            output = call_model(self._model, batch)
            self._times = 1.0
            width = self._layer.in_features
            hidden_BD = torch.cat([tensor.reshape(-1, width) for tensor in self._caught])
            self._calls = len(self._caught)
            self._caught.clear()
        return hidden_BD, output

    @property
    def once(self) -> bool:
        """True if the last batch called the layer once, so that no context depends on logits."""
        return self._calls == 1

    def skip_product(self) -> None:
        def zeros(input: Tensor) -> Tensor:
            return input.new_zeros(1).expand(*input.shape[:-1], self._layer.out_features)

        self._layer.forward = zeros  # type: ignore[method-assign]


def rows_of_batch(inputs: LayerInputs, batch: Any) -> Float32:
    hidden_states: Float32 = inputs.read(batch)[0].float().cpu().numpy()
    return hidden_states


def make_layer_inputs(load: Callable[[], nn.Module], name: str, skip: bool) -> LayerInputs:
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
