"""Logits processors that run `generate`'s own on few logits, or draw instead of them.

Processors that edit single ids depend only on `input_ids`, so applying them to a row of ones shows
which ids they edit. KnownLogits computes the logits of these; DecoderDraws turns the edits into
constraints. Bans need no logits if enough of the best ids are left. Warpers need K exact logits if
the first one leaves K ids; otherwise the decoder draws.

Shape letters: K ids with known logits.
"""

from collections.abc import Sequence
from math import inf
from typing import Any, TypeAlias, cast

import numpy as np
import torch
from torch import LongTensor, Tensor
from transformers import LogitsProcessor, PreTrainedModel
from transformers.generation import logits_process as theirs
from transformers.generation.configuration_utils import GenerationMode

from logitsieve.api.checks import STRONGEST, number
from logitsieve.api.constraints import Constraints, IdSets
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.keywords import SampleOptions
from logitsieve.api.mask import packed
from logitsieve.client.huggingface_head import DecoderHead, LastAnswer
from logitsieve.client.huggingface_whisper import first_timestamp, without_mass

FEW = 32  # up to V / 32 ids become a list, more become a mask
MASKING = ("xgrammar", "outlines")  # packages with logits processors for grammars


class GrammarMask(LogitsProcessor):
    """Forbids the ids that a grammar's processor sets to -inf, whatever their logits.

    The processor advances by a token at each call, so it is called once a step.
    """

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self._at = torch.empty(0, 0)  # `input_ids` of the step
        self._forbidden = torch.empty(0, 0)

    def __call__(self, input_ids: LongTensor, scores: Tensor) -> Tensor:
        if not torch.equal(self._at, input_ids):
            self._at = input_ids.clone()
            self._forbidden = self._processor(input_ids, torch.zeros_like(scores)) == -torch.inf
        return scores.masked_fill(self._forbidden.to(scores.device), -torch.inf)


def by_steps(processors: Sequence[Any]) -> list[LogitsProcessor]:
    return [
        GrammarMask(each) if type(each).__module__.partition(".")[0] in MASKING else each
        for each in processors
    ]


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
    theirs.WhisperTimeStampLogitsProcessor,
    GrammarMask,
)
EDITORS: tuple[type[LogitsProcessor], ...] = (
    *PENALTIES,
    *BANS,
    theirs.SequenceBiasLogitsProcessor,
    theirs.ForcedBOSTokenLogitsProcessor,
    theirs.ForcedEOSTokenLogitsProcessor,
    theirs.ExponentialDecayLengthPenalty,
)
# In `generate`'s order, the settings that decoders have too, which are the processors' attributes.
DRAWN: dict[type[LogitsProcessor], str] = {
    theirs.TemperatureLogitsWarper: "temperature",
    theirs.TopPLogitsWarper: "top_p",
    theirs.MinPLogitsWarper: "min_p",
}
# Settings that need all logits, with the processors' attributes.
WHOLE_ROW: dict[type[LogitsProcessor], tuple[str, str]] = {
    theirs.TypicalLogitsWarper: ("typical_p", "mass"),
    theirs.EpsilonLogitsWarper: ("epsilon_cutoff", "epsilon"),
    theirs.EtaLogitsWarper: ("eta_cutoff", "epsilon"),
}
# Warpers that need only the best ids, with their attributes.
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
    for processor in processors:
        if type(processor) not in EDITORS + WARPERS and not isinstance(processor, editors):
            raise InvalidRequest(
                "logits_processor",
                type(processor).__name__,
                "one that edits ids by input_ids alone; name your own in attach(editors=...)",
            )
    return [each for each in processors if type(each) in EDITORS or isinstance(each, editors)]


def count_of_best(processors: Sequence[LogitsProcessor]) -> int:
    """Return how many best ids of a row the warpers need; 0 if they need all."""
    for processor in processors:
        if attribute := LISTED.get(type(processor)):
            return int(getattr(processor, attribute))
        if type(processor) in (theirs.TopPLogitsWarper, theirs.MinPLogitsWarper, *WHOLE_ROW):
            return 0
    return 0


def draw_options(processors: Sequence[LogitsProcessor]) -> SampleOptions:
    """Return the options of `Decoder.sample` that draw as these warpers do.

    InvalidRequest names a setting that `sample` lacks, or one that is out of order.
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
    """Runs `processors` on the logits that they need; those in `editing` edit single ids."""

    def __init__(
        self,
        head: DecoderHead,
        processors: Sequence[LogitsProcessor],
        editing: Sequence[LogitsProcessor],
    ) -> None:
        self._head, self._processors = head, [_quick(each) for each in processors]
        self._editing = [_quick(without_mass(each)) for each in editing]
        self._bans = all(type(each) in BANS for each in editing)
        self._first = first_timestamp(editing)

    def __call__(self, input_ids: LongTensor, scores: Tensor) -> Tensor:
        last = self._head.last
        assert last is not None
        assert len(last.ids) == len(scores)
        read = None if self._first is None else self._head.computed_from(self._first)
        if self._bans and self._head.valued is None:
            edited = self._banned(last, input_ids, scores, read)
            if edited is not None:
                return edited
        after = _edited(self._editing, input_ids, torch.ones_like(scores)).to(last.ids.device)
        touched = after != 1
        if read is None and not touched.any():
            return _edited(self._processors, input_ids, scores)
        log_softmax = scores.to(last.ids.device).gather(1, last.ids[:, :1]) - last.logits[:, :1]
        if read is None and self._bans:
            full = self._allowed(last, ~touched)
        else:
            full = self._known(last, touched, after == -torch.inf, read)
        return _edited(self._processors, input_ids, (full + log_softmax).to(scores.device))

    def _banned(
        self,
        last: LastAnswer,
        input_ids: LongTensor,
        scores: Tensor,
        read: tuple[Tensor, Tensor] | None,
    ) -> Tensor | None:
        """Edit `scores` if enough of the best ids in `last` and `read` remain; else None."""
        ids, logits = last.ids.to(scores.device), last.logits.to(scores.device)
        log_softmax = scores.gather(1, ids[:, :1]) - logits[:, :1]
        if read is not None:
            given = read[1].to(scores.device) + log_softmax
            scores = torch.cat([scores[:, : self._first], given], 1)
        edited = _edited(self._processors, input_ids, scores)
        enough = (edited.gather(1, ids) != -torch.inf).sum(1) >= self._head.enough
        if read is not None:
            # If timestamps outweigh the last logit of `last`, all other text is forbidden as well.
            above = edited[:, self._first :].logsumexp(1) > (logits[:, -1:] + log_softmax)[:, 0]
            enough = torch.where(edited[:, : self._first].amax(1) == -torch.inf, above, enough)
        return edited if enough.all() else None

    def _allowed(self, last: LastAnswer, allowed: Tensor) -> Tensor:
        """Return logits [B, V] that are exact at the best allowed ids.

        A row with fewer allowed ids than the choice may need gets some others too.
        """
        count, left = self._head.enough, allowed.sum(1)
        if 2 * int(left.min()) > allowed.shape[1]:  # next time more best ids may make this needless
            self._head.ask_for(2 * last.ids.shape[1])
        more = (~allowed).cumsum(1) <= (count - left).clamp(min=0)[:, None]
        mask, rows = Constraints(mask=packed((allowed | more).cpu().numpy())), last.hidden_states
        best = self._head.topk(rows, count, self._head.valued, constraints=mask)
        return self._head.filled(LastAnswer(rows, *best), others=left - count)

    def _known(
        self, last: LastAnswer, touched: Tensor, dead: Tensor, read: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        # The other ids' mean mass must not include forbidden ids, so these are computed.
        asked = touched.clone() if self._head.valued else touched & ~dead
        if read is not None:
            touched[:, self._first :], asked[:, self._first :] = True, False
        free = (~touched).sum(1)
        few = free <= touched.shape[1] // 2
        asked |= ~touched & few[:, None]
        needed = torch.where(few, 0, torch.clamp(free, max=self._head.enough))
        if read is not None and self._bans:  # timestamps that outweigh all text forbid it
            alive = read[1].masked_fill(dead[:, self._first :], -torch.inf)
            needed = torch.where(alive.logsumexp(1) > last.logits[:, 0], 0, needed)
        top = last
        while ((~touched.gather(1, top.ids)).sum(1) < needed).any():
            k = min(2 * top.ids.shape[1], touched.shape[1])
            self._head.ask_for(k)
            ids, logits, _ = self._head.topk(last.hidden_states, k)
            top = last._replace(ids=ids, logits=logits)
        more = [read] if read is not None else []
        if asked.any():
            more.append(self._head.logits(last.hidden_states, asked))
        return self._head.filled(top, *more)


class Banned(LogitsProcessor):
    """Bans ids at each step or at one; Transformers' own processor searches all V for them."""

    def __init__(self, ids: Tensor, at: int | None) -> None:
        self._ids, self._at = ids, at

    def __call__(self, input_ids: LongTensor, scores: Tensor) -> Tensor:
        if self._at not in (None, input_ids.shape[-1]):
            return scores
        ids = self._ids[(self._ids >= 0) & (self._ids < scores.shape[1])]
        return scores.index_fill(1, ids.to(scores.device), -torch.inf)


def _quick(processor: Any) -> LogitsProcessor:
    if type(processor) is theirs.SuppressTokensLogitsProcessor:
        return Banned(processor.suppress_tokens, None)
    if type(processor) is theirs.SuppressTokensAtBeginLogitsProcessor:
        return Banned(processor.begin_suppress_tokens, processor.begin_index)
    return cast("LogitsProcessor", processor)


class DecoderDraws(LogitsProcessor):
    """Lets the decoder draw an id for each row, in place of `generate`'s processors."""

    def __init__(
        self, head: DecoderHead, editing: Sequence[LogitsProcessor], options: SampleOptions
    ) -> None:
        self._head, self._options = head, options
        self._editing = [_quick(without_mass(each)) for each in editing]
        valued: list[Any] = [each for each in editing if type(each) not in BANS]
        # It is set if a penalty is all that changes logits of allowed ids.
        lone = len(valued) == 1 and type(valued[0]) in PENALTIES
        self._penalty: float | None = valued[0].penalty if lone else None
        self._first = first_timestamp(editing)
        self._known = KnownLogits(head, editing, editing)

    def __call__(self, input_ids: LongTensor, scores: Tensor) -> Tensor:
        """Return log-probabilities [B, V], -inf except for the draws."""
        head = self._head
        constraints = self._constraints(input_ids, scores) if self._editing else None
        ids, log_probs = head.sample(constraints, self._options)
        if head.kept and head.last is not None:  # `generate` returns `scores` as logits
            more = head.listed(head.last.hidden_states, ids)
            scores.copy_(head.filled(head.last, more))
        full = torch.full_like(scores, -torch.inf)
        # On a GPU, rows that are not finite get -1 and NaN, which `multinomial` refuses.
        return full.scatter_(1, ids.clamp(min=0).to(full.device), log_probs.to(full.device))

    def _constraints(self, input_ids: LongTensor, scores: Tensor) -> Constraints:
        after = _edited(self._editing, input_ids, torch.ones_like(scores))
        dead = after == -torch.inf
        if self._first is not None:
            text = self._known(input_ids, scores)[:, : self._first]
            dead[:, : self._first] |= (text == -torch.inf).all(1, keepdim=True)
        asked = (after != 1) & ~dead
        sets: dict[str, Any] = {}
        if FEW * int((~dead).sum()) <= dead.numel():
            sets["allowed"] = _id_sets(~dead)
        elif FEW * int(dead.sum()) > dead.numel():
            sets["mask"] = packed((~dead).cpu().numpy())
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
        """Return the edits of the ids `asked` [B, V] as biases, added to exact logits."""
        head = self._head
        assert head.hidden_states is not None
        ids, logits = head.logits(head.hidden_states, asked.to(head.hidden_states.device))
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
    """Return the places of True in a mask [B, M], or the `ids` [B, M] there."""
    offsets = np.zeros(len(mask) + 1, np.int32)
    np.cumsum(mask.sum(1).cpu().numpy(), out=offsets[1:])
    chosen = mask.nonzero()[:, 1] if ids is None else ids[mask]
    return IdSets(offsets, chosen.cpu().numpy().astype(np.int32))


GUIDE: TypeAlias = theirs.UnbatchedClassifierFreeGuidanceLogitsProcessor
# These depend on a logit's sign. Hugging Face normalizes before it guides, which changes signs.
SIGNED = (*PENALTIES, theirs.ExponentialDecayLengthPenalty)


class Guided(LogitsProcessor):
    """Guides by hidden states: the head's rows become combinations with the negative prompt's."""

    def __init__(self, head: DecoderHead, guide: GUIDE) -> None:
        self._head, self._guide = head, guide
        self._scale = number("guidance_scale", guide.guidance_scale, -STRONGEST, STRONGEST)

    def __call__(self, input_ids: LongTensor, scores: Tensor) -> Tensor:
        given = self._head.hidden_states
        self._guide.get_unconditional_logits(input_ids)
        negative = self._head.hidden_states
        assert given is not None
        assert negative is not None
        negative = negative.float()
        self._head.hidden_states = negative + self._scale * (given.float() - negative)
        if not self._head.unread:
            scores.copy_(self._head.answered())
        return scores


def guidance(
    head: DecoderHead,
    prepared: Sequence[LogitsProcessor],
    mode: GenerationMode,
    model: PreTrainedModel,
) -> list[LogitsProcessor]:
    """Return processors that guide; InvalidRequest if ids would differ from Hugging Face's."""
    guides = [each for each in prepared if type(each) is GUIDE]
    if not guides:
        return []
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        allowed = "1 with beams, which the cache of the negative prompt does not follow"
        raise InvalidRequest("guidance_scale", guides[0].guidance_scale, allowed)
    if model.config.is_encoder_decoder:
        allowed = "1 for a model with an encoder"
        raise InvalidRequest("guidance_scale", guides[0].guidance_scale, allowed)
    for each in prepared:
        if type(each) in SIGNED:
            allowed = "none beside guidance_scale: it depends on the sign of a logit"
            raise InvalidRequest("logits_processor", type(each).__name__, allowed)
    return [Guided(head, guide) for guide in guides]
