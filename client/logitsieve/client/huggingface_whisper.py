"""Support for Whisper's logits processors, which need more than the best ids.

WhisperTimeStampLogitsProcessor forbids text if all timestamps together are likelier than the best
text. WhisperNoSpeechDetection reads one probability at the first position of a segment.
"""

from collections.abc import Sequence
from copy import copy
from typing import Any

from torch import LongTensor, Tensor
from transformers import LogitsProcessor
from transformers.generation import logits_process as theirs

from logitsieve.client.huggingface_head import DecoderHead


def without_mass(processor: LogitsProcessor) -> LogitsProcessor:
    """Return the processor without its rule about the timestamps' probability."""
    if type(processor) is theirs.WhisperTimeStampLogitsProcessor:
        processor = copy(processor)
        processor._detect_timestamp_from_logprob = False
    return processor


def first_timestamp(processors: Sequence[LogitsProcessor]) -> int | None:
    """Return the first timestamp's id if a processor needs all timestamps' logits."""
    for processor in processors:
        if type(processor) is theirs.WhisperTimeStampLogitsProcessor:
            return processor.timestamp_begin if processor._detect_timestamp_from_logprob else None
    return None


class NoSpeech(LogitsProcessor):
    """Gives a WhisperNoSpeechDetection logits by the layer's own weights."""

    def __init__(self, head: DecoderHead, detection: Any) -> None:
        self._head, self._detection = head, detection

    def __call__(self, input_ids: LongTensor, scores: Tensor) -> Tensor:
        detection = self._detection
        if input_ids.shape[1] == detection.begin_index:
            assert self._head.hidden_states is not None
            self._head.whole = True
            try:
                given = self._head(self._head.hidden_states).float()
                detection(
                    input_ids, given.log_softmax(1) if detection.is_scores_logprobs else given
                )
            finally:
                self._head.whole = False
        return scores
