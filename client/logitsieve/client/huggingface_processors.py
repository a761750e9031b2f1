"""Logits processors that call `generate`'s own, or draw instead of them.

Processors that edit single ids read only `input_ids`, so a row of ones shows which: KnownLogits
finds their logits, DecoderDraws turns edits into constraints. Bans need no logits if enough of the
best ids are left. Warpers read a row: if the first leaves K ids, K exact logits suffice; otherwise
the decoder draws.

Shape letters: B rows, V vocabulary, K ids with known logits.
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

FEW = 32  # of so many ids, one is listed; more make a mask
MASKING = ("xgrammar", "outlines")  # packages whose logits processors follow a grammar


class GrammarMask(LogitsProcessor):
    """Forbids what a grammar's processor does, which is called once a step: it goes on by a token.

    Such processors set logits to -inf, whatever these are.
    """

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self._at = torch.empty(0, 0)  # `input_ids` of the step
        self._forbidden = torch.empty(0, 0)

    def __call__(self, input_ids: LongTensor, scores: Tensor) -> Tensor:
        """Forbid ids of `scores` [B, V]."""
        if not torch.equal(self._at, input_ids):
            self._at = input_ids.clone()
            self._forbidden = self._processor(input_ids, torch.zeros_like(scores)) == -torch.inf
        return scores.masked_fill(self._forbidden.to(scores.device), -torch.inf)


def by_steps(processors: Sequence[Any]) -> list[LogitsProcessor]:
    """Return the processors, those of xgrammar and outlines as masks."""
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
    """Runs `processors` over the logits that they need; `editing` of them edit single ids."""

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
        """Edit `scores` [B, V]: logits, or for beams log-probabilities."""
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
        """Edit `scores`, if the best ids of `last` and `read` decide which ids are left."""
        ids, logits = last.ids.to(scores.device), last.logits.to(scores.device)
        log_softmax = scores.gather(1, ids[:, :1]) - logits[:, :1]
        if read is not None:
            given = read[1].to(scores.device) + log_softmax
            scores = torch.cat([scores[:, : self._first], given], 1)
        edited = _edited(self._processors, input_ids, scores)
        enough = (edited.gather(1, ids) != -torch.inf).sum(1) >= self._head.enough
        if read is not None:
            # Text outside of `last` is below its last logit, so it would have been forbidden too.
            above = edited[:, self._first :].logsumexp(1) > (logits[:, -1:] + log_softmax)[:, 0]
            enough = torch.where(edited[:, : self._first].amax(1) == -torch.inf, above, enough)
        return edited if enough.all() else None

    def _allowed(self, last: LastAnswer, allowed: Tensor) -> Tensor:
        """Return logits [B, V], exact at the best ids of a mask; the forbidden ones do not matter.

        A row that allows fewer ids than the choice may need asks for some others beside them.
        """
        count, left = self._head.enough, allowed.sum(1)
        if 2 * int(left.min()) > allowed.shape[1]:  # more of the best ids may do without a mask
            self._head.ask_for(2 * last.ids.shape[1])
        more = (~allowed).cumsum(1) <= (count - left).clamp(min=0)[:, None]
        mask, rows = Constraints(mask=packed((allowed | more).cpu().numpy())), last.hidden_states
        best = self._head.topk(rows, count, self._head.valued, constraints=mask)
        return self._head.filled(LastAnswer(rows, *best), others=left - count)

    def _known(
        self, last: LastAnswer, touched: Tensor, dead: Tensor, read: tuple[Tensor, Tensor] | None
    ) -> Tensor:
        # The other ids' mean is right if the dead ones are not among them.
        asked = touched.clone() if self._head.valued else touched & ~dead
        if read is not None:
            touched[:, self._first :], asked[:, self._first :] = True, False
        free = (~touched).sum(1)
        few = free <= touched.shape[1] // 2
        asked |= ~touched & few[:, None]
        needed = torch.where(few, 0, torch.clamp(free, max=self._head.enough))
        if read is not None and self._bans:  # no text is left if timestamps are above all
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
    """Bans ids at each step, or at one; Transformers' own looks for them among all V."""

    def __init__(self, ids: Tensor, at: int | None) -> None:
        self._ids, self._at = ids, at

    def __call__(self, input_ids: LongTensor, scores: Tensor) -> Tensor:
        """Ban the ids that the vocabulary has."""
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
    """Draws an id for each row by the decoder, instead of `generate`'s processors."""

    def __init__(
        self, head: DecoderHead, editing: Sequence[LogitsProcessor], options: SampleOptions
    ) -> None:
        self._head, self._options = head, options
        self._editing = [_quick(without_mass(each)) for each in editing]
        valued: list[Any] = [each for each in editing if type(each) not in BANS]
        # Set if only a penalty changes logits of allowed ids.
        lone = len(valued) == 1 and type(valued[0]) in PENALTIES
        self._penalty: float | None = valued[0].penalty if lone else None
        self._first = first_timestamp(editing)
        self._known = KnownLogits(head, editing, editing)

    def __call__(self, input_ids: LongTensor, scores: Tensor) -> Tensor:
        """Return log-probabilities [B, V], -inf for ids not drawn; read `scores` gain logits."""
        head = self._head
        constraints = self._constraints(input_ids, scores) if self._editing else None
        ids, log_probs = head.sample(constraints, self._options)
        if head.kept and head.last is not None:  # `generate` keeps `scores` as logits
            more = head.listed(head.last.hidden_states, ids)
            scores.copy_(head.filled(head.last, more))
        full = torch.full_like(scores, -torch.inf)
        # For a row that is not finite a GPU answers -1 and NaN, which `multinomial` refuses.
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
        """Return the edits of ids `asked` [B, V] as differences to exact logits."""
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
    """Return the true entries of a mask [B, M], or their `ids` [B, M]."""
    offsets = np.zeros(len(mask) + 1, np.int32)
    np.cumsum(mask.sum(1).cpu().numpy(), out=offsets[1:])
    chosen = mask.nonzero()[:, 1] if ids is None else ids[mask]
    return IdSets(offsets, chosen.cpu().numpy().astype(np.int32))


GUIDE: TypeAlias = theirs.UnbatchedClassifierFreeGuidanceLogitsProcessor
# They read the sign of a logit, which the constant changes.
SIGNED = (*PENALTIES, theirs.ExponentialDecayLengthPenalty)


class Guided(LogitsProcessor):
    """Replaces the rows of the prompt by the guided ones; the model reads the negative prompt."""

    def __init__(self, head: DecoderHead, guide: GUIDE) -> None:
        self._head, self._guide = head, guide
        self._scale = number("guidance_scale", guide.guidance_scale, -STRONGEST, STRONGEST)

    def __call__(self, input_ids: LongTensor, scores: Tensor) -> Tensor:
        """Return `scores` [B, V] with the guided logits in place, if they are read."""
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
    """Return what guides, if anything; InvalidRequest where Hugging Face's ids would differ."""
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
