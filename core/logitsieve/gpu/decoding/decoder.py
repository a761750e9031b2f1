"""LocalDecoder's methods for tensors on its index's GPU: nothing is waited for.

What a GPU cannot do goes by the host, which waits for it, and is answered in tensors all the same.

A row that cannot be answered, being not finite or too large, has ids of -1, other numbers of NaN,
and `exact` False.

Shape letters: B batch rows, D hidden size, T targets.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from logitsieve.api.constraints import Constraints
from logitsieve.api.decoder import Target
from logitsieve.api.requests import Beams, Sampling, score_targets
from logitsieve.api.results import (
    ArrayLike,
    BeamStepReply,
    Provenance,
    SampleReply,
    ScoreReply,
    TopKReply,
)
from logitsieve.decoding.engine import NO_LOG_Z
from logitsieve.decoding.normalizers import STEPPING, default_normalizer
from logitsieve.gpu.decoding.beam import beam_step
from logitsieve.gpu.decoding.normalizers import NORMALIZERS, normalizes_there
from logitsieve.gpu.decoding.requests import (
    beams_there,
    here,
    in_tensors,
    seeds_there,
    targets_there,
    there,
)
from logitsieve.gpu.decoding.sample import draws_there, logits_of, narrowed, sample
from logitsieve.gpu.heads import GpuHead

if TYPE_CHECKING:
    from logitsieve.decoding.decoder import LocalDecoder


class GpuDecoder:
    """Answers hidden [B, D], a tensor that `rows_of` returned."""

    def __init__(self, host: LocalDecoder) -> None:
        self._host, self._index = host, host.index

    def topk(
        self, hidden: Tensor, k: int, constraints: Constraints | None, target: Target
    ) -> TopKReply:
        """The k best tokens of each row."""
        started, log_z = perf_counter_ns(), NO_LOG_Z
        point = self._host.engine_for(target, len(hidden), k)
        if constraints is not None or not normalizes_there(self._index, point.normalizer):
            reply = point.topk(here(hidden), k, constraints)
            return in_tensors(reply, hidden.device)
        top = point.answering.topk(hidden, k)
        if point.normalizer:
            log_z = NORMALIZERS[point.normalizer](self._index, hidden, 1.0)
        provenance = Provenance(top.exact, top.scanned, top.exact & (not point.proves))
        answer = point.answer(started, provenance, point.normalizer, log_z)
        return TopKReply(top.ids, top.logits, answer)

    def score(
        self, hidden: Tensor, targets: ArrayLike, constraints: Constraints | None, target: Target
    ) -> ScoreReply:
        """Log-probabilities of `targets`: -inf for ids that there are not."""
        started, rows = perf_counter_ns(), len(hidden)
        point = self._host.engine_for(target, rows, 1)
        normalizer = point.normalizer or default_normalizer(self._index)
        if constraints is not None or not normalizes_there(self._index, normalizer):
            reply = point.score(here(hidden), score_targets(here(targets), rows), constraints)
            return in_tensors(reply, hidden.device)
        ids = targets_there(targets, hidden, self._index.vocab_size)
        log_z = NORMALIZERS[normalizer](self._index, hidden, 1.0)
        value, low, high = cast(Any, log_z[:3])
        log_probs = logits_of(self._index, hidden, ids) - value.double()[:, None]
        exact = ~torch.isnan(value) if low is None else low == high
        scanned = torch.full_like(exact, ids.shape[1], dtype=torch.int32)
        provenance = Provenance(*cast(Any, (exact, scanned, torch.zeros_like(exact))))
        answer = point.answer(started, provenance, normalizer, log_z)
        return ScoreReply(cast(Any, log_probs.float()), answer)

    def sample(
        self,
        hidden: Tensor,
        how: Sampling,
        seeds: Tensor | None,
        constraints: Constraints | None,
        target: Target,
    ) -> SampleReply:
        """Draws for each row; `seeds` None: those of `how`."""
        started = perf_counter_ns()
        point = self._host.engine_for(target, len(hidden), 1)
        head = cast(GpuHead, point.answering)
        bits = there(how.seeds.view(np.int64), hidden.device) if seeds is None else seeds
        how = narrowed(how, self._index.vocab_size)
        how = how._replace(seeds=cast(Any, seeds_there(bits, hidden)))
        if constraints is not None or not draws_there(self._index, head, how, point.normalizer):
            how = how._replace(seeds=here(how.seeds).view(np.uint64))
            reply = point.sample(here(hidden), how, constraints)
            return in_tensors(reply, hidden.device)
        draws = sample(self._index, head, hidden, how, point.normalizer)
        answer = point.answer(started, draws.provenance, draws.normalizer, draws.log_z)
        return SampleReply(draws.ids, draws.log_probs, answer)

    def beam_step(
        self,
        hidden: Tensor,
        beams: Beams,
        given: dict[str, Tensor],
        constraints: Constraints | None,
        target: Target,
    ) -> BeamStepReply:
        """One step of a beam search; `given` are vectors that stand instead of those of `beams`."""
        started, k = perf_counter_ns(), min(beams.beams_out, self._index.vocab_size)
        point = self._host.engine_for(target, len(hidden), k)
        if constraints is not None or point.normalizer not in ("", STEPPING):
            asked = {**beams._asdict(), **{name: here(given[name]) for name in given}}
            keywords: Any = {**target, **asked}
            reply = self._host.beam_step(here(hidden), constraints=constraints, **keywords)
            return in_tensors(reply, hidden.device)
        ready, head = beams_there(beams, given, hidden), cast(GpuHead, point.answering)
        step = beam_step(self._index, head, hidden, ready, k)
        answer = point.answer(started, step.provenance, STEPPING, step.log_z)
        return BeamStepReply(*step[:5], answer)

    def warm(self) -> None:
        """Compile what arrays have no need of."""
        device = cast(GpuHead, self._index.head("exact")).device
        zeros = torch.zeros((1, self._index.dim), device=device)
        self._host.sample(zeros, top_k=1)
