"""An output layer that calls a Decoder: it returns some ids' logits, and one value for all others.

Shape letters: T positions, K ids with known logits.
"""

from collections.abc import Sequence
from math import log
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules import module as modules
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from transformers import GenerationConfig

from logitsieve.api.constraints import Constraints, IdSets
from logitsieve.api.decoder import Decoder
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.keywords import ModelSpec, NormalizerName, SampleOptions

LISTED_AT_ONCE = 512  # ids of a row in one request

UNREAD = 8192.0  # stands for logits that `generate` does not read
BELOW = 1024.0  # a logit this far below another has no mass, but is finite, so that edits show


class LastAnswer(NamedTuple):
    hidden_states: Tensor  # [B, D] on the decoder's device
    ids: Tensor  # [B, K] int64
    logits: Tensor  # [B, K] float32
    log_z: Tensor | None  # [B]


class DecoderHead(nn.Module):
    """Replaces an nn.Linear, and has its parameters under the same names."""

    def __init__(
        self,
        layer: nn.Linear,
        decoder: Decoder,
        k: int,
        normalizer: NormalizerName,
        spec: ModelSpec,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        self.hidden_states: Tensor | None = None  # [B, D] of the last call
        self.last: LastAnswer | None = None  # None if logits were not read
        self._filled: Tensor | None = None  # [B, V] the logits that `forward` returned
        self._decoder, self._spec = decoder, spec
        self._tensors = bool(getattr(decoder, "takes_tensors", False))  # it is on a GPU
        self._normalizer, self._least_k = normalizer, k
        # An estimated log Z would not keep the promise of such a spec about the order of beams.
        promised = any(spec.get(name) for name in ("head", "exact", "width"))
        promised = promised or spec.get("max_error") is not None
        self._comparing: NormalizerName = "full" if promised else "approximate"
        self.rest()

    def rest(self) -> None:
        """Return to the state outside of `generate`: answer all positions, with log Z."""
        self.k = self.enough = self._least_k
        self._log_z: NormalizerName | None = self._normalizer
        self.drawing = self._last_only = self._scored = self._normalised = False
        self.unread = False  # `generate` does not read logits
        self.whole = False  # all logits are computed by the layer's own weights
        self.guided = False  # guidance combines hidden states before the decoder sees them
        self.kept = False  # `generate` returns the logits

    def serve(
        self, config: GenerationConfig, best: int, drawing: bool, normalised: bool = False
    ) -> None:
        """Prepare for `generate`, which reads the last position and chooses among `best` ids.

        `normalised` scores are compared by value, even after edits.
        """
        self.enough = min(best, self.out_features)
        self.k = max(self._least_k, self.enough)
        self._last_only, self.drawing, self.whole = True, drawing, False
        self._scored, self.kept = bool(config.output_scores), bool(config.output_logits)
        self._normalised = normalised
        self.unread = drawing and not (best or config.output_logits)
        beams, sampling = (config.num_beams or 1) > 1, bool(config.do_sample)
        # When sampling, warpers remove all ids without exact scores.
        read = config.output_logits or beams or (self._scored and not sampling)
        self._log_z = self._normalizer if read else None
        if beams:
            self._log_z = self._spec.get("normalizer") or self._comparing

    def ask_for(self, k: int) -> None:
        """Use `k` ids in the next steps, but at most twice as many as without bans."""
        self.k = max(self.k, min(k, 2 * max(self._least_k, self.enough), self.out_features))

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Map [..., D] to float32 [..., V]; `generate` gets only the last position of [B, T, D]."""
        if torch.is_grad_enabled() and hidden_states.requires_grad:
            got = "a tensor that requires grad"
            raise InvalidRequest("hidden_states", got, "one under no_grad")
        if self.whole:
            return nn.functional.linear(hidden_states.to(self.weight), self.weight, self.bias)
        if self._last_only and hidden_states.dim() == 3:
            hidden_states = hidden_states[:, -1:]
        shape = *hidden_states.shape[:-1], self.out_features
        rows_BD = hidden_states.detach().reshape(-1, self.in_features)
        self.hidden_states = rows_BD if self._tensors else rows_BD.cpu()
        self.last = self._filled = None
        if self.unread or self.guided:
            return torch.full(shape, UNREAD, device=hidden_states.device)
        return (
            self.answered().clone().reshape(shape).to(hidden_states.device)
        )  # hooks may change it

    def answered(self) -> Tensor:
        """Return the logits [B, V] of `hidden_states`, exact where they are needed."""
        assert self.hidden_states is not None
        self.last = LastAnswer(
            self.hidden_states, *self.topk(self.hidden_states, self.k, self._log_z)
        )
        self._filled = self.filled(self.last)
        return self._filled

    def unchanged(self, logits: Tensor) -> bool:
        """Return True if `logits` [..., V] are those of the last call, bit for bit."""
        if self._filled is None:
            return bool((logits == UNREAD).all())
        rows = logits.reshape(-1, logits.shape[-1]).to(self._filled.device)
        return torch.equal(rows, self._filled)

    def topk(
        self,
        hidden_states: Tensor,
        k: int,
        normalizer: NormalizerName | None = None,
        constraints: Constraints | None = None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        spec = self._spec_with(normalizer)
        reply = self._decoder.topk(self._rows(hidden_states), k, constraints=constraints, **spec)
        ids, logits, log_z = self._ids(reply.ids), reply.logits, reply.answer.log_z
        return ids, torch.as_tensor(logits), None if log_z is None else torch.as_tensor(log_z)

    def sample(
        self, constraints: Constraints | None, options: SampleOptions
    ) -> tuple[Tensor, Tensor]:
        """Draw ids [B, 1] for the last rows, seeded by torch's generator, and log-probabilities.

        The latter are 0 unless `generate` returns scores.
        """
        assert self.hidden_states is not None
        seeds = torch.randint(-(1 << 63), (1 << 63) - 1, (len(self.hidden_states),), device="cpu")
        spec = self._spec_with(self._normalizer if self._scored else None)
        given: SampleOptions = {**spec, **options, "seeds": seeds.numpy().view(np.uint64)}
        given["log_probs"] = self._scored
        reply = self._decoder.sample(
            self._rows(self.hidden_states), constraints=constraints, **given
        )
        ids, log_probs = self._ids(reply.ids), torch.as_tensor(reply.log_probs)
        return ids, log_probs if self._scored else log_probs.where(ids < 0, 0.0)

    def _spec_with(self, normalizer: NormalizerName | None) -> ModelSpec:
        # A width without a normalizer would make the decoder compute log Z.
        width = self._spec.get("width") if normalizer else None
        return {**self._spec, "normalizer": normalizer, "width": width}

    def _rows(self, hidden_states: Tensor) -> Any:
        return (
            hidden_states
            if self._tensors or hidden_states.dtype != torch.float32
            else hidden_states.numpy()
        )

    def _ids(self, answered: Any) -> Tensor:
        ids = torch.as_tensor(answered).long()
        if not self._tensors and int(ids.max()) >= self.out_features:  # on a GPU it would wait
            raise InvalidRequest("decoder", f"id {int(ids.max())}", f"under {self.out_features}")
        return ids

    def logits(self, hidden_states: Tensor, asked: Tensor) -> tuple[Tensor, Tensor]:
        """Return ids [B, K] that include those of the mask `asked` [B, V], and their logits."""
        most = int(asked.sum(1).max())
        ids = asked.float().topk(most).indices  # shorter rows get other ids too
        slices = torch.split(ids, LISTED_AT_ONCE, dim=1)
        parts = [self.listed(hidden_states, part) for part in slices]
        return torch.cat([part[0] for part in parts], 1), torch.cat([part[1] for part in parts], 1)

    def listed(self, hidden_states: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        rows, count = ids.shape
        offsets = np.arange(rows + 1, dtype=np.int32) * count
        allowed = IdSets(offsets, ids.flatten().cpu().numpy().astype(np.int32))
        best, logits, _ = self.topk(
            hidden_states.cpu(), count, constraints=Constraints(allowed=allowed)
        )
        return best.to(ids.device), logits.to(ids.device)

    def computed_from(self, first: int) -> tuple[Tensor, Tensor]:
        """Return all ids from `first` on, and their logits for the last rows, [B, M].

        A product with the layer's own weights is cheaper for so many adjacent rows of W.
        """
        assert self.last is not None
        bias = None if self.bias is None else self.bias[first:]
        hidden_states = self.last.hidden_states.to(self.weight)
        logits = nn.functional.linear(hidden_states, self.weight[first:], bias).float()
        ids = torch.arange(first, self.out_features, device=self.last.ids.device)
        return ids.expand(logits.shape), logits.to(ids.device)

    @property
    def valued(self) -> NormalizerName | None:
        """The normalizer if not only the order but the values of scores matter."""
        return self._log_z if self._scored or self._normalised else None

    def filled(
        self, top: LastAnswer, *more: tuple[Tensor, Tensor], others: Tensor | None = None
    ) -> Tensor:
        """Return float32 [B, V] with the logits of `top` and of `more` (ids and logits [B, M]).

        All other ids get one logit, such that they have the rest of the mass, at most the last
        logit of `top`. `others` [B] counts those of them that are allowed. Without log Z the logit
        is far below, or -inf if there are `more`.
        """
        if more:
            full = torch.full((len(top.ids), self.out_features), -torch.inf, device=top.ids.device)
        else:
            last, left = top.logits[:, -1], self.out_features - top.ids.shape[1]
            far = last - last.abs() - BELOW
            counted = left if others is None else others
            other = far if top.log_z is None else self._mean(top, top.logits, counted)
            full = other[:, None].repeat(1, self.out_features)
        for ids, logits in ((top.ids, top.logits), *more):
            full.scatter_(1, ids, logits)
        if more and top.log_z is not None:
            unknown = full == -torch.inf
            full = full.where(~unknown, self._mean(top, full, unknown.sum(1))[:, None])
        return full

    def complete(self, scores: Sequence[Tensor]) -> None:
        """Give the other ids of each row of `scores` equal parts of the remaining probability."""
        for step in scores:
            drawn = step.amax(1, keepdim=True)
            rest = torch.log(-torch.expm1(drawn)) - log(max(step.shape[1] - 1, 1))
            step.copy_(torch.where(step == -torch.inf, rest, step))

    def _mean(self, top: LastAnswer, known: Tensor, others: Tensor | int) -> Tensor:
        assert top.log_z is not None
        log_z = top.log_z.double()
        missing = (1 - (known.double() - log_z[:, None]).exp().sum(1)).clamp(min=0)
        missing /= torch.as_tensor(others).clamp(min=1)
        return torch.minimum(log_z + missing.log(), top.logits[:, -1].double()).float()


PLAIN = "an nn.Linear that computes W h + b and nothing else; merge adapters into its weight"
COMPUTE_WEIGHTS = (WeightNorm, SpectralNorm)  # these hooks only set the weight before each call
HOOKS = ("_forward_pre_hooks", "_forward_hooks")
SIZES = 1.0, 64.0  # factors of hidden states, as caps show in large logits
ROUNDING = 8  # in units of the type's epsilon


def refuse_more_than_linear(layer: nn.Linear) -> None:
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
