"""The first of the processors of `generate`: it learns the logits that the others will edit.

A processor that penalises or biases an id needs its logit, which may not be among those answered,
and one that bans ids may leave too few of them. Both look at `input_ids` alone: what they will do
is seen by having them edit a row of ones.

Shape letters: B rows, V vocabulary, K ids whose logits are known.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import LongTensor, Tensor
from transformers import LogitsProcessor
from transformers.generation import logits_process as theirs

from logitsieve.api.errors import InvalidRequest
from logitsieve.client.huggingface_head import DecoderHead, LastAnswer

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
