"""Logits processors before `generate`'s own, or instead of them if it samples.

Processors that edit single ids read only `input_ids`, so a row of ones shows which: KnownLogits
finds their logits, DecoderDraws turns edits into constraints. Warpers read a row: if the first
leaves K ids, K exact logits suffice; otherwise the decoder draws.

Shape letters: B rows, V vocabulary, K ids with known logits.
"""

from collections.abc import Sequence
from math import inf
from typing import Any, cast

import numpy as np
import torch
from torch import LongTensor, Tensor
from transformers import LogitsProcessor
from transformers.generation import logits_process as theirs

from logitsieve.api.constraints import Constraints, IdSets
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.keywords import SampleOptions
from logitsieve.client.huggingface_head import DecoderHead, LastAnswer

PENALTIES = (
    theirs.RepetitionPenaltyLogitsProcessor,
    theirs.EncoderRepetitionPenaltyLogitsProcessor,
)
BANS: tuple[type[LogitsProcessor], ...] = (
    theirs.NoBadWordsLogitsProcessor,
    theirs.NoRepeatNGramLogitsProcessor,
    theirs.EncoderNoRepeatNGramLogitsProcessor,
    theirs.MinLengthLogitsProcessor,
    theirs.MinNewTokensLengthLogitsProcessor,
    theirs.PrefixConstrainedLogitsProcessor,
    theirs.SuppressTokensLogitsProcessor,
    theirs.SuppressTokensAtBeginLogitsProcessor,
)
EDITORS: tuple[type[LogitsProcessor], ...] = (
    *PENALTIES,
    *BANS,
    theirs.SequenceBiasLogitsProcessor,
    theirs.ForcedBOSTokenLogitsProcessor,
    theirs.ForcedEOSTokenLogitsProcessor,
    theirs.ExponentialDecayLengthPenalty,
)
# Settings for a decoder's draws, in `generate`'s order; also the processors' attributes.
DRAWN: dict[type[LogitsProcessor], str] = {
    theirs.TemperatureLogitsWarper: "temperature",
    theirs.TopPLogitsWarper: "top_p",
    theirs.MinPLogitsWarper: "min_p",
}
# Settings that need all logits, and the processors' attributes.
WHOLE_ROW: dict[type[LogitsProcessor], tuple[str, str]] = {
    theirs.TypicalLogitsWarper: ("typical_p", "mass"),
    theirs.EpsilonLogitsWarper: ("epsilon_cutoff", "epsilon"),
    theirs.EtaLogitsWarper: ("eta_cutoff", "epsilon"),
}
# Warpers that need only the best ids, and their attributes.
LISTED: dict[type[LogitsProcessor], str] = {
    theirs.TopKLogitsWarper: "top_k",
    theirs.TopHLogitsWarper: "top_n",
}
WARPERS: tuple[type[LogitsProcessor], ...] = (  # they keep the order of ids
    theirs.InfNanRemoveLogitsProcessor,
    theirs.LogitNormalization,
    *DRAWN,
    *WHOLE_ROW,
    *LISTED,
)


def editing_processors(
    processors: Sequence[LogitsProcessor], editors: tuple[type[LogitsProcessor], ...]
) -> list[LogitsProcessor]:
    """Return the processors that edit single ids; InvalidRequest for unknown ones."""
    for processor in processors:
        if type(processor) not in EDITORS + WARPERS and not isinstance(processor, editors):
            raise InvalidRequest(
                "logits_processor",
                type(processor).__name__,
                "one that edits ids by input_ids alone; name your own in attach(editors=...)",
            )
    return [each for each in processors if type(each) in EDITORS or isinstance(each, editors)]


def count_of_best(processors: Sequence[LogitsProcessor]) -> int:
    """Return how many best ids of a row the warpers depend on; 0: all."""
    for processor in processors:
        if attribute := LISTED.get(type(processor)):
            return int(getattr(processor, attribute))
        if type(processor) in (theirs.TopPLogitsWarper, theirs.MinPLogitsWarper, *WHOLE_ROW):
            return 0
    return 0


def draw_options(processors: Sequence[LogitsProcessor]) -> SampleOptions:
    """Return the options of `Decoder.sample` for the law of these warpers.

    InvalidRequest names a setting that `sample` lacks, or one out of order.
    """
    order: list[type[LogitsProcessor]] = [*DRAWN, theirs.LogitNormalization]
    options: dict[str, float] = {}
    last, last_stage = "", -1
    for processor in processors:
        kind, name = type(processor), type(processor).__name__
        if kind is theirs.InfNanRemoveLogitsProcessor:
            continue
        if kind in WHOLE_ROW:
            setting, attribute = WHOLE_ROW[kind]
            allowed = "none without a top_k or top_h: it depends on all V logits"
            raise InvalidRequest(setting, f"{float(getattr(processor, attribute)):.6g}", allowed)
        stage = order.index(kind) if kind in order else -1
        if 0 <= last_stage >= stage:
            allowed = "edits of single ids, temperature, top_p and min_p, in this order"
            raise InvalidRequest("logits_processor", f"{name} after {last}", allowed)
        last, last_stage = name, stage
        if setting := DRAWN.get(kind, ""):
            options[setting] = float(getattr(processor, setting))
            _refuse_variant(processor, setting)
    return cast("SampleOptions", options)


def _refuse_variant(processor: Any, setting: str) -> None:
    least = getattr(processor, "min_tokens_to_keep", 1)
    filler = getattr(processor, "filter_value", -inf)
    if least != 1 or filler != -inf:
        got = f"min_tokens_to_keep={least}, filter_value={filler}"
        raise InvalidRequest(setting, got, "min_tokens_to_keep=1, filter_value=-inf")


class KnownLogits(LogitsProcessor):
    """Finds the logits of edited ids, and of the best others."""

    def __init__(self, head: DecoderHead, editing: Sequence[LogitsProcessor]) -> None:
        self._head, self._editing = head, editing

    def __call__(self, input_ids: LongTensor, scores: Tensor) -> Tensor:
        """Complete `scores` [B, V]: logits, or for beams log-probabilities."""
        if not self._editing:
            return scores
        last = self._head.last
        assert last is not None
        after = _edited(self._editing, input_ids, torch.ones_like(scores)).to(last.ids.device)
        touched = after != 1
        assert len(last.ids) == len(scores)
        if not touched.any():
            return scores
        log_softmax = scores.to(last.ids.device).gather(1, last.ids[:, :1]) - last.logits[:, :1]
        full = self._known(last, touched, after == -torch.inf)
        return (full + log_softmax).to(scores.device)

    def _known(self, last: LastAnswer, touched: Tensor, dead: Tensor) -> Tensor:
        asked = touched & ~dead
        free = (~touched).sum(1)
        few = free <= touched.shape[1] // 2
        asked |= ~touched & few[:, None]
        needed = torch.where(few, 0, torch.clamp(free, max=self._head.enough))
        top = last
        while ((~touched.gather(1, top.ids)).sum(1) < needed).any():
            k = min(2 * top.ids.shape[1], touched.shape[1])
            ids, logits, _ = self._head.topk(last.hidden, k)
            top = last._replace(ids=ids, logits=logits)
        more = self._head.logits(last.hidden, asked) if asked.any() else None
        return self._head.filled(top, more)


class DecoderDraws(LogitsProcessor):
    """Draws an id for each row by the decoder, instead of `generate`'s processors."""

    def __init__(
        self, head: DecoderHead, editing: Sequence[LogitsProcessor], options: SampleOptions
    ) -> None:
        self._head, self._editing, self._options = head, editing, options
        valued: list[Any] = [each for each in editing if type(each) not in BANS]
        # Set if only a penalty changes logits of allowed ids.
        lone = len(valued) == 1 and type(valued[0]) in PENALTIES
        self._penalty: float | None = valued[0].penalty if lone else None

    def __call__(self, input_ids: LongTensor, scores: Tensor) -> Tensor:
        """Return log-probabilities [B, V], -inf for ids not drawn; read `scores` gain logits."""
        head = self._head
        constraints = self._constraints(input_ids, scores) if self._editing else None
        ids, log_probs = head.sample(constraints, self._options)
        if head.last is not None:  # `generate` keeps `scores` as logits
            more = head.listed(head.last.hidden, ids)
            scores.copy_(head.filled(head.last, more))
        full = torch.full_like(scores, -torch.inf)
        # For a row that is not finite a GPU answers -1 and NaN, which `multinomial` refuses.
        return full.scatter_(1, ids.clamp(min=0).to(full.device), log_probs.to(full.device))

    def _constraints(self, input_ids: LongTensor, scores: Tensor) -> Constraints:
        after = _edited(self._editing, input_ids, torch.ones_like(scores))
        dead = after == -torch.inf
        asked = (after != 1) & ~dead
        sets: dict[str, Any] = {}
        if 2 * int(dead.sum()) > dead.numel():
            sets["allowed"] = _id_sets(~dead)
        elif dead.any():
            sets["banned"] = _id_sets(dead)
        if asked.any():
            penalty = self._penalty
            if penalty is not None and (after[asked] == after.new_ones(()) / penalty).all():
                sets |= {"repeated": _id_sets(asked), "repetition_penalty": penalty}
            else:
                sets |= self._biases(input_ids, asked)
        return Constraints(**sets)

    def _biases(self, input_ids: LongTensor, asked: Tensor) -> dict[str, Any]:
        """Return the edits of ids `asked` [B, V] as differences to exact logits."""
        head = self._head
        assert head.hidden is not None
        ids, logits = head.logits(head.hidden, asked.to(head.hidden.device))
        ids, logits = ids.to(asked.device), logits.to(asked.device)
        row = torch.ones(asked.shape, device=asked.device).scatter_(1, ids, logits)
        after = _edited(self._editing, input_ids, row).gather(1, ids)
        chosen = asked.gather(1, ids)
        bias = (after.double() - logits.double())[chosen]
        return {"biased": _id_sets(chosen, ids), "bias": bias.cpu().numpy().astype(np.float32)}


def _edited(editing: Sequence[LogitsProcessor], input_ids: LongTensor, row: Tensor) -> Tensor:
    for processor in editing:
        row = processor(input_ids, row)
    return row


def _id_sets(mask: Tensor, ids: Tensor | None = None) -> IdSets:
    """Return the true entries of a mask [B, M], or their `ids` [B, M]."""
    offsets = np.zeros(len(mask) + 1, np.int32)
    np.cumsum(mask.sum(1).cpu().numpy(), out=offsets[1:])
    chosen = mask.nonzero()[:, 1] if ids is None else ids[mask]
    return IdSets(offsets, chosen.cpu().numpy().astype(np.int32))
