"""An output layer that calls a Decoder: logits of a few ids, and one value for all others.

Shape letters: B rows, T positions, D hidden size, V vocabulary, K ids whose logits are known.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import GenerationConfig

from logitsieve.api.constraints import Constraints, IdSets
from logitsieve.api.decoder import Decoder, NormalizerName, Target
from logitsieve.api.errors import InvalidRequest

LISTED_AT_ONCE = 512  # ids of a row in one request


class LastAnswer(NamedTuple):
    """The last answer of a head, for the processors that come after."""

    hidden: Tensor  # [B, D] where the decoder takes it: on its GPU, or on the CPU
    ids: Tensor  # [B, K] int64
    logits: Tensor  # [B, K] float32
    log_z: Tensor | None  # [B]

    def same(self, logits: Tensor) -> bool:
        """True if `logits` [..., V] still hold these, bit for bit."""
        rows = logits.reshape(-1, logits.shape[-1]).to(self.ids.device)
        return len(rows) == len(self.ids) and torch.equal(rows.gather(1, self.ids), self.logits)


class DecoderHead(nn.Module):
    """Takes the place of an nn.Linear, whose parameters it keeps under their names.

    Without a `normalizer` it finds no log Z, and other logits are -inf.
    """

    def __init__(
        self,
        layer: nn.Linear,
        decoder: Decoder,
        k: int,
        normalizer: NormalizerName | None,
        target: Target,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        self.last: LastAnswer | None = None
        self._decoder, self._target = decoder, target
        self._tensors = takes_tensors(decoder)
        self._normalizer, self._least_k = normalizer, k  # rest() sets .k and .enough
        self.rest()

    def rest(self) -> None:
        """Answer all positions, with log Z, as outside of `generate`."""
        self.k = self.enough = self._least_k
        self._last_only, self._wants_log_z = False, True

    def serve(self, config: GenerationConfig) -> None:
        """Answer the last position, as precisely as `generate` will look at it."""
        self.enough = min(_looked_at(config) or self._least_k, self.out_features)
        self.k = max(self._least_k, self.enough)
        self._last_only = True
        self._wants_log_z = bool(
            (config.num_beams or 1) > 1
            or config.do_sample
            or config.output_scores
            or config.output_logits
        )

    def forward(self, hidden: Tensor) -> Tensor:
        """[..., D] to float32 [..., V]; of [B, T, D], only the last position in `generate`."""
        if torch.is_grad_enabled() and hidden.requires_grad:
            raise InvalidRequest("hidden", "a tensor that requires grad", "one under no_grad")
        if self._last_only and hidden.dim() == 3:
            hidden = hidden[:, -1:]
        rows_BD = hidden.detach().reshape(-1, self.in_features)
        rows_BD = rows_BD if self._tensors else rows_BD.cpu()
        wanted = self._normalizer if self._wants_log_z else None
        ids, logits, log_z = self.topk(rows_BD, self.k, wanted)
        self.last = LastAnswer(rows_BD, ids, logits, log_z)
        return self.filled(self.last).reshape(*hidden.shape[:-1], -1).to(hidden.device)

    def topk(
        self,
        hidden: Tensor,
        k: int,
        normalizer: NormalizerName | None = None,
        constraints: Constraints | None = None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the k best ids and their logits [B, K], and log Z [B] under a normalizer."""
        rows = hidden if self._tensors or hidden.dtype != torch.float32 else hidden.numpy()
        target: Target = {**self._target, "normalizer": normalizer}
        reply = self._decoder.topk(rows, k, constraints=constraints, **target)
        log_z = reply.answer.log_z
        ids, logits = torch.as_tensor(reply.ids).long(), torch.as_tensor(reply.logits)
        if not self._tensors and int(ids.max()) >= self.out_features:  # a GPU would be waited for
            raise InvalidRequest("decoder", f"id {int(ids.max())}", f"under {self.out_features}")
        return ids, logits, None if log_z is None else torch.as_tensor(log_z)

    def logits(self, hidden: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Return ids [B, K] that hold those of the mask `wanted` [B, V], and their logits."""
        most = int(wanted.sum(1).max())
        ids = wanted.float().topk(most).indices  # shorter rows are filled up with other ids
        slices = torch.split(ids, LISTED_AT_ONCE, dim=1)
        parts = [self._listed(hidden, part) for part in slices]
        return torch.cat([part[0] for part in parts], 1), torch.cat([part[1] for part in parts], 1)

    def _listed(self, hidden: Tensor, ids: Tensor) -> tuple[Tensor, Tensor]:
        rows, count = ids.shape
        offsets = np.arange(rows + 1, dtype=np.int32) * count
        allowed = IdSets(offsets, ids.flatten().cpu().numpy().astype(np.int32))
        best, logits, _ = self.topk(hidden.cpu(), count, constraints=Constraints(allowed=allowed))
        return best.to(ids.device), logits.to(ids.device)

    def filled(self, top: LastAnswer, more: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Return float32 [B, V] with the logits of `top` and of `more` (ids and logits, [B, M]).

        Elsewhere it is the log of the mean mass of the other ids, at most the last of `top`.
        """
        shape = len(top.ids), self.out_features
        full = torch.full(shape, -torch.inf, device=top.ids.device)
        if top.log_z is not None:
            full.copy_(self._mean(top, more)[:, None].expand_as(full))
        full.scatter_(1, top.ids, top.logits)
        return full if more is None else full.scatter_(1, *more)

    def _mean(self, top: LastAnswer, more: tuple[Tensor, Tensor] | None) -> Tensor:
        assert top.log_z is not None
        log_z = top.log_z.double()
        known = (top.logits.double() - log_z[:, None]).exp().sum(1)
        unknown = torch.full_like(known, self.out_features - top.ids.shape[1])
        if more is not None:
            new = ~(more[0][:, :, None] == top.ids[:, None]).any(2)
            known += (more[1].double() - log_z[:, None]).exp().mul(new).sum(1)
            unknown -= new.sum(1)
        missing = (1 - known).clamp(min=0) / unknown.clamp(min=1)
        return torch.minimum(log_z + missing.log(), top.logits[:, -1].double()).float()


def takes_tensors(decoder: Decoder) -> bool:
    """True for one in process that answers tensors in tensors: its index is on a GPU."""
    return bool(getattr(decoder, "takes_tensors", False))


def _looked_at(config: GenerationConfig) -> int:
    """Number of a row's best ids that the choice depends on; 0 for all of them."""
    beams, ends = config.num_beams or 1, getattr(config, "_eos_token_tensor", None)
    count = 0 if ends is None else len(ends)
    pairs = max(2, 1 + count) * beams if beams > 1 else 1
    if not config.do_sample:
        return pairs
    return max(pairs, config.top_k) if config.top_k else 0
