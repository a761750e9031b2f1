"""The engine of a GPU: tensors there are answered in tensors there, and nothing is waited for.

What the GPU cannot do goes by the host, which waits for it, and is answered in tensors all the
same. A row that cannot be answered, being not finite or too large, has ids of -1, other numbers of
NaN, and `exact` False.

Shape letters: B batch rows, D hidden size, T targets, N draws, M ids of a row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial
from math import inf
from time import perf_counter_ns
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from logitsieve.api.constraints import Constraints
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.requests import Beams, Sampling, score_targets
from logitsieve.api.results import BeamStepReply, Provenance, SampleReply, ScoreReply, TopKReply
from logitsieve.decoding.engine import NO_LOG_Z, Engine
from logitsieve.decoding.log_z import PrintedLogZ
from logitsieve.decoding.normalizers import CANDIDATES, CERTIFIED, EXACT, STEPPING
from logitsieve.gpu.beam import next_beams
from logitsieve.gpu.device import name_of, to_device, to_host
from logitsieve.gpu.heads import gpu_heads
from logitsieve.gpu.heads.base import GpuHead
from logitsieve.gpu.log_z import DeviceLogZ
from logitsieve.gpu.staging import device_beams, device_sampling, device_targets, host_beams
from logitsieve.heads._base.head import ready_hidden
from logitsieve.index import Index

Reply = TypeVar("Reply")
FOUND_ON_GPU = (EXACT.name, CERTIFIED.name)  # the normalizers, each by the head of its name


class GpuEngine(Engine):
    """Answers tensors on the index's GPU there, and arrays as `Engine` does."""

    takes_tensors = True
    answering: Any  # a GpuHead

    @staticmethod
    def rows(index: Index, hidden: Any) -> Any:
        """[B, D]: a tensor of a tensor on the index's GPU, a float32 array of anything else."""
        tensor = _head(index, "exact").device_rows(hidden)
        return ready_hidden(hidden, index.dim) if tensor is None else tensor

    @staticmethod
    def sampling(hidden: Any, samples: int, options: Any) -> Sampling:
        make = device_sampling if isinstance(hidden, Tensor) else Engine.sampling
        return make(hidden, samples, options)

    @staticmethod
    def beams(hidden: Any, scores: Any, beams_in: int, beams_out: int, options: Any) -> Beams:
        make = device_beams if isinstance(hidden, Tensor) else Engine.beams
        return make(hidden, scores, beams_in, beams_out, options)

    @staticmethod
    def targets(hidden: Any, targets: Any) -> Any:
        """The targets of `score`, which checks them beside a tensor."""
        return targets if isinstance(hidden, Tensor) else Engine.targets(hidden, targets)

    @staticmethod
    def default_for_width(index: Index) -> str:
        """`exact`, which is narrow enough and is computed on the GPU."""
        return EXACT.name

    def topk(self, hidden: Any, k: int, constraints: Constraints | None = None) -> TopKReply:
        if not isinstance(hidden, Tensor):
            return super().topk(hidden, k, constraints)
        if constraints is not None:
            return _by_host(self._host.topk, hidden, k, constraints)
        if not self._finds(self.normalizer):
            return _by_host(super().topk, hidden, k)
        started, log_z = perf_counter_ns(), NO_LOG_Z
        top: Any = self.answering.topk(hidden, k)
        if self.normalizer:
            log_z = self._log_z(self.normalizer, hidden, 1.0).printed()
        answer = self.answer(started, self._provenance(top), self.normalizer, log_z)
        return TopKReply(top.ids, top.logits, answer)

    def score(self, hidden: Any, targets: Any, constraints: Constraints | None) -> ScoreReply:
        """Log-probabilities of `targets`: -inf for ids outside the vocabulary."""
        if not isinstance(hidden, Tensor):
            return super().score(hidden, targets, constraints)
        if constraints is not None or not self._finds(self._scoring.name):
            answer_arrays = super().score if constraints is None else self._host.score
            arrays = score_targets(to_host(targets), len(hidden))
            return _by_host(answer_arrays, hidden, arrays, constraints)
        started, ids = perf_counter_ns(), device_targets(targets, hidden, self._index.vocab_size)
        log_z = self._log_z(self._scoring.name, hidden, 1.0)
        log_probs, exact = log_z.log_probs(self._logits(hidden, ids), ids)
        scanned = torch.full_like(exact, ids.shape[1], dtype=torch.int32)
        provenance = self._computed(exact, scanned)
        answer = self.answer(started, provenance, self._scoring.name, log_z.printed())
        reply: Any = log_probs, answer
        return ScoreReply(*reply)

    def sample(
        self, hidden: Any, sampling: Sampling, constraints: Constraints | None
    ) -> SampleReply:
        if not isinstance(hidden, Tensor):
            return super().sample(hidden, sampling, constraints)
        started, vocab_size = perf_counter_ns(), self._index.vocab_size
        # One id to choose from at a temperature of 0.
        top_k = min(sampling.top_k, vocab_size) if sampling.temperature else 1
        sampling = sampling._replace(top_k=top_k)
        if constraints is not None or not self._draws(sampling):
            seeds = to_host(sampling.seeds).view(np.uint64)
            return _by_host(super().sample, hidden, sampling._replace(seeds=seeds), constraints)
        seeds = sampling.seeds
        if not isinstance(seeds, Tensor):
            seeds = to_device(seeds.view(np.int64), hidden.device)
        filtered = top_k or sampling.top_p < 1.0 or sampling.min_p > 0.0
        draw = self._draw_filtered if filtered else self._draw_from_all
        ids, log_probs, *answer = draw(hidden, sampling, seeds)
        return SampleReply(ids, log_probs, self.answer(started, *answer))

    def beam_step(
        self, hidden: Any, beams: Beams, constraints: Constraints | None
    ) -> BeamStepReply:
        """Continuations by log Z in float64; a group that its interval leaves open is not exact."""
        if not isinstance(hidden, Tensor):
            return super().beam_step(hidden, beams, constraints)
        if constraints is not None or self._stepping.name != STEPPING:
            answer_arrays = super().beam_step if constraints is None else self._host.beam_step
            return _by_host(answer_arrays, hidden, host_beams(beams), constraints)
        if isinstance(beams.finished, Tensor) and not beams.eos_ids:
            allowed = "at least one, where hypotheses may have finished"
            raise InvalidRequest("eos_ids", "none", allowed)
        started, beams = perf_counter_ns(), to_device(beams, hidden.device)
        top: Any = self.answering.topk(hidden, min(beams.beams_out, self._index.vocab_size))
        logits = self._logits(hidden, top.ids)
        log_z = self._log_z(STEPPING, hidden, 1.0).raised(logits, top.ids)
        *pairs, doubtful = next_beams(beams, hidden, top.ids, logits, log_z)
        finished: Any = beams.finished
        found = ((top.exact & ~torch.isnan(log_z.value)) | finished).view(-1, beams.beams_in).all(1)
        provenance = Provenance(
            (found & ~doubtful).repeat_interleave(beams.beams_in),
            top.scanned.masked_fill(finished, 0),
            top.exact & (not self.proves) & ~finished,
        )
        value, low, high, _ = log_z.printed()
        printed = (each.masked_fill(finished, torch.nan) for each in (value, low, high))
        answer = self.answer(started, provenance, STEPPING, PrintedLogZ(*printed))
        reply: Any = *pairs, answer
        return BeamStepReply(*reply)

    @cached_property
    def _host(self) -> Engine:
        """The same on the host. With constraints its head lists: hidden crosses the bus once."""
        head, normalizer = self.answering.cpu_head, self.normalizer
        return Engine(self.model, self._index, head, normalizer, self.width)

    def _provenance(self, top: Any) -> Provenance:
        return Provenance(top.exact, top.scanned, top.exact & (not self.proves))

    @staticmethod
    def _computed(exact: Tensor, scanned: Tensor) -> Provenance:
        """The provenance of answers in which no fallback had a part."""
        fields: Any = exact, scanned, torch.zeros_like(exact)
        return Provenance(*fields)

    def _finds(self, normalizer: str) -> bool:
        """True where the GPU finds it, or none is wanted; the host refuses one without its head.

        A width is the host's to reach by `certified`.
        """
        if normalizer == CERTIFIED.name and self.width < inf:
            return False
        return not normalizer or (normalizer in FOUND_ON_GPU and normalizer in self._index.heads)

    def _draws(self, sampling: Sampling) -> bool:
        """True for draws from a list that the GPU finds, or from all of V."""
        if sampling.top_k > 0:
            return bool(self.answering.fits(sampling.top_k))
        filtered = sampling.top_p < 1.0 or sampling.min_p > 0.0
        return self.head in FOUND_ON_GPU and (filtered or self._finds(self.normalizer))

    def _logits(self, hidden: Tensor, ids: Tensor) -> Any:
        """[B, M] float64 of ids [B, M], NaN where a row cannot be answered."""
        return _head(self._index, "exact").logits64(hidden, ids)

    def _log_z(self, normalizer: str, hidden: Tensor, scale: float) -> DeviceLogZ:
        """In float64 by `exact`, the interval that the sketch proves by `certified`."""
        head = _head(self._index, normalizer)
        if normalizer == EXACT.name:
            return DeviceLogZ.of(head.log_z(hidden, scale), scale)
        return DeviceLogZ.of(head.draw_in_bounds(hidden, 0, None, 0, scale)[1], scale)

    def _draw_filtered(self, hidden: Tensor, sampling: Sampling, seeds: Tensor) -> tuple[Any, ...]:
        """ids and log-probabilities [B, N], and what `answer` takes."""
        exact, filters = _head(self._index, "exact"), (sampling.top_p, sampling.min_p)
        drawing = sampling.samples, seeds, sampling.step
        scale = 1.0 / (sampling.temperature or 1.0)
        if sampling.top_k:
            top: Any = self.answering.topk(hidden, sampling.top_k)
            listed, provenance = (top.ids, self._logits(hidden, top.ids)), self._provenance(top)
            ids, logits, fields = exact.draw_listed(*listed, *drawing, (scale, *filters))
        else:
            ids, logits, fields = exact.draw_filtered(hidden, *drawing, (scale, *filters))
            drawn = ids[:, 0] >= 0
            provenance = self._computed(drawn, drawn.int() * self._index.vocab_size)
        log_z = DeviceLogZ.of(fields, scale)
        log_probs, _ = log_z.log_probs(logits, ids)
        printed = log_z.printed()
        if sampling.top_k:  # log Z of lists has no bounds, as on the host
            printed = PrintedLogZ(printed.value)
        return ids, log_probs, provenance, CANDIDATES.name, printed

    def _draw_from_all(self, hidden: Tensor, sampling: Sampling, seeds: Tensor) -> tuple[Any, ...]:
        """The same by a pass over W or over the sketch."""
        head, scale = self.answering, 1.0 / sampling.temperature
        drawing = hidden, sampling.samples, seeds, sampling.step, scale
        ids, interval, scanned = head.draw_in_bounds(*drawing)
        normalizer = self.normalizer or self.head
        if normalizer == self.head == CERTIFIED.name:
            log_z = DeviceLogZ.of(interval, scale)
        else:
            log_z = self._log_z(normalizer, hidden, scale)
        log_probs, _ = log_z.log_probs(self._logits(hidden, ids), ids)
        drawn = ids[:, 0] >= 0
        provenance = self._computed(drawn, scanned)
        return ids, log_probs, provenance, normalizer, log_z.printed()


class GpuBackend:
    """The heads and engines of a GPU."""

    engine = GpuEngine

    def __init__(self, device: torch.device) -> None:
        self.name = name_of(device)
        self.make_heads: Callable[..., Mapping[str, GpuHead]] = partial(gpu_heads, device=device)

    def logits(self, exact: Any, hidden: Any, ids_BM: Any) -> Tensor | None:
        """float32 [B, M]; -inf for ids outside the vocabulary."""
        tensors = isinstance(hidden, Tensor) and isinstance(ids_BM, Tensor)
        return exact.logits64(hidden, ids_BM).float() if tensors else None


def _head(index: Index, name: str) -> Any:
    return index.head(name)


def _by_host(answer: Callable[..., Reply], hidden: Tensor, *rest: Any) -> Reply:
    """The answer of an engine to hidden in an array, with its arrays copied to hidden's GPU."""
    reply: Reply = to_device(answer(to_host(hidden), *rest), hidden.device)
    return reply
