"""Guidance by a negative prompt: one answer for a combination of two hidden states.

Sanchez et al. 2023, "Stay on Topic with Classifier-Free Guidance". The layer is linear, so W h + b
of h = h_u + s (h_c - h_u) are the guided logits, with the bias counted once. Hugging Face combines
log-probabilities instead, which adds one constant to all scores of a row.
"""

from collections.abc import Sequence
from typing import TypeAlias

from torch import LongTensor, Tensor
from transformers import LogitsProcessor, PreTrainedModel
from transformers.generation import logits_process as theirs
from transformers.generation.configuration_utils import GenerationMode

from logitsieve.api.checks import STRONGEST, number
from logitsieve.api.errors import InvalidRequest
from logitsieve.client.huggingface_head import DecoderHead
from logitsieve.client.huggingface_processors import PENALTIES

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
