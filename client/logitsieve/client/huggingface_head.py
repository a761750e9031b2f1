"""An output layer that calls a Decoder: logits of a few ids, and one value for all others.

Logits processors that penalise or bias an id need its logit, which may not be among those answered,
and those that ban ids may leave too few of them. So the first of the processors learns what the
others will do, which look at `input_ids` alone, by having them edit a row of ones.

Shape letters: B rows, T positions, D hidden size, V vocabulary, K ids whose logits are known.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import LongTensor, Tensor, nn
from transformers import GenerationConfig, LogitsProcessor
from transformers.generation import logits_process as theirs

from logitsieve.api.constraints import Constraints, IdSets
from logitsieve.api.decoder import Decoder, NormalizerName, Target
from logitsieve.api.errors import InvalidRequest

LISTED_AT_ONCE = 512  # ids of a row in one request

EDITORS: tuple[type[LogitsProcessor], ...] = (
    theirs.SequenceBiasLogitsProcessor,  # and bad words
    theirs.EncoderRepetitionPenaltyLogitsProcessor,
    theirs.RepetitionPenaltyLogitsProcessor,
    theirs.NoRepeatNGramLogitsProcessor,
    theirs.EncoderNoRepeatNGramLogitsProcessor,
    theirs.MinLengthLogitsProcessor,
    theirs.MinNewTokensLengthLogitsProcessor,
    theirs.PrefixConstrainedLogitsProcessor,
    theirs.ForcedBOSTokenLogitsProcessor,
    theirs.ForcedEOSTokenLogitsProcessor,
    theirs.ExponentialDecayLengthPenalty,
    theirs.SuppressTokensLogitsProcessor,
    theirs.SuppressTokensAtBeginLogitsProcessor,
)
WARPERS: tuple[type[LogitsProcessor], ...] = (  # they keep the order of ids
    theirs.InfNanRemoveLogitsProcessor,
    theirs.TemperatureLogitsWarper,
    theirs.TopHLogitsWarper,
    theirs.TopKLogitsWarper,
    theirs.TopPLogitsWarper,
    theirs.MinPLogitsWarper,
    theirs.TypicalLogitsWarper,
    theirs.EpsilonLogitsWarper,
    theirs.EtaLogitsWarper,
    theirs.LogitNormalization,
)


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
        scored = config.do_sample or config.output_scores or config.output_logits
        self._wants_log_z = bool(scored) or (config.num_beams or 1) > 1

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


class KnownLogits(LogitsProcessor):
    """Finds the logits of edited ids, and of as many of the best others as the choice needs."""

    def __init__(
        self,
        head: DecoderHead,
        processors: Sequence[LogitsProcessor],
        editors: tuple[type[LogitsProcessor], ...] = (),
    ) -> None:
        for processor in processors:
            if not isinstance(processor, EDITORS + WARPERS + editors):
                raise InvalidRequest(
                    "logits_processor",
                    type(processor).__name__,
                    "one that edits ids by input_ids alone; name your own in attach(editors=...)",
                )
        self._head = head
        self._editing = [each for each in processors if isinstance(each, EDITORS + editors)]

    def __call__(self, input_ids: LongTensor, scores: Tensor) -> Tensor:
        """Complete `scores`: logits [B, V], or log-probabilities in a search by beams."""
        if not self._editing:
            return scores
        after: Tensor = torch.ones_like(scores)
        for processor in self._editing:
            after = processor(input_ids, after)
        last = self._head.last
        assert last is not None
        after = after.to(last.ids.device)
        touched = after != 1
        assert len(last.ids) == len(scores)
        if not touched.any():
            return scores
        log_softmax = scores.to(last.ids.device).gather(1, last.ids[:, :1]) - last.logits[:, :1]
        full = self._known(last, touched, after == -torch.inf)
        return (full + log_softmax).to(scores.device)

    def _known(self, last: LastAnswer, touched: Tensor, dead: Tensor) -> Tensor:
        wanted = touched & ~dead
        free = (~touched).sum(1)
        few = free <= touched.shape[1] // 2
        wanted |= ~touched & few[:, None]  # all that remain are soon named
        needed = torch.where(few, 0, torch.clamp(free, max=self._head.enough))
        top = last
        while ((~touched.gather(1, top.ids)).sum(1) < needed).any():
            k = min(2 * top.ids.shape[1], touched.shape[1])
            ids, logits, _ = self._head.topk(last.hidden, k)
            top = last._replace(ids=ids, logits=logits)
        more = self._head.logits(last.hidden, wanted) if wanted.any() else None
        return self._head.filled(top, more)


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
