"""What answers the softmax: heads by their decoders, and the full softmax of numpy and torch.

Shape letters: B hypotheses, G sentences, K pairs, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

import numpy as np
import torch

from logitsieve.api.decoder import Target
from logitsieve.api.results import Answer, BeamStepReply, Float32, TopKReply
from logitsieve.heads import Softmax

BASELINES = ("numpy", "torch")


def _answer(rows: int, size: int) -> Answer:
    every, plain = np.ones(rows, np.bool_), np.zeros(rows, np.bool_)
    return Answer("full", "", "", "full", every, np.full(rows, size, np.int32), plain)


class NumpySoftmax:
    """A matrix product, one pass for log Z, a partial sort."""

    def __init__(self, softmax: Softmax) -> None:
        self._weight_DV, self._bias = softmax.weight.T, softmax.bias

    def topk(self, hidden: Float32, k: int) -> TopKReply:
        """Greedy search alone asks it, for one."""
        logits = self._logits(hidden)
        assert k == 1
        ids = logits.argmax(axis=1)[:, None]
        values = np.take_along_axis(logits, ids, axis=1)
        return TopKReply(ids.astype(np.int32), values, _answer(*logits.shape))

    def beam_step(
        self, hidden: Float32, scores: Float32, *, beams_in: int, beams_out: int, **options: Any
    ) -> BeamStepReply:
        """The K best of each group."""
        logits = self._logits(hidden)
        rows, size = logits.shape
        top = logits.max(axis=1)
        shift = top + np.log(np.exp(logits - top[:, None]).sum(axis=1)) - scores
        logits -= shift[:, None]
        groups = logits.reshape(-1, beams_in * size)
        best = np.argpartition(groups, -beams_out, axis=1)[:, -beams_out:]
        values = np.take_along_axis(groups, best, axis=1)
        order = np.argsort(-values, axis=1)
        return _pairs(
            np.take_along_axis(best, order, axis=1),
            np.take_along_axis(values, order, axis=1),
            options["eos_ids"],
            _answer(rows, size),
        )

    def _logits(self, hidden: Float32) -> Float32:
        logits: Float32 = hidden @ self._weight_DV
        logits += self._bias
        return logits


class TorchSoftmax:
    """linear, log_softmax, topk."""

    def __init__(self, softmax: Softmax) -> None:
        self._weight = torch.from_numpy(softmax.weight.copy())
        self._bias = torch.from_numpy(softmax.bias.copy())

    @torch.inference_mode()
    def topk(self, hidden: Float32, k: int) -> TopKReply:
        """Greedy search alone asks it, for one."""
        assert k == 1
        values, ids = self._logits(hidden).max(dim=1, keepdim=True)
        answer = _answer(len(ids), len(self._bias))
        return TopKReply(ids.numpy().astype(np.int32), values.numpy(), answer)

    @torch.inference_mode()
    def beam_step(
        self, hidden: Float32, scores: Float32, *, beams_in: int, beams_out: int, **options: Any
    ) -> BeamStepReply:
        """The K best of each group."""
        sums = torch.log_softmax(self._logits(hidden), dim=1)
        sums += torch.from_numpy(scores)[:, None]
        values, best = torch.topk(sums.view(-1, beams_in * sums.shape[1]), beams_out)
        answer = _answer(*sums.shape)
        return _pairs(best.numpy(), values.numpy(), options["eos_ids"], answer)

    def _logits(self, hidden: Float32) -> torch.Tensor:
        return torch.nn.functional.linear(torch.from_numpy(hidden), self._weight, self._bias)


def _pairs(
    best: np.ndarray, values: Float32, eos_ids: Sequence[int], answer: Answer
) -> BeamStepReply:
    size = int(answer.scanned[0])
    parents, tokens = (each.astype(np.int32) for each in np.divmod(best, size))
    return BeamStepReply(parents, tokens, values, values, np.isin(tokens, eos_ids), answer)


@dataclass
class Clocked:
    """A decoder whose calls are timed and counted."""

    name: str
    decoder: Any
    target: Target
    nanoseconds: int = 0
    calls: int = 0
    rows: int = 0
    groups: int = 0
    exact_rows: int = 0
    settled: int = 0  # groups whose order took an exact log Z, though an interval was asked for

    def topk(self, hidden: Float32, k: int) -> TopKReply:
        """As the decoder's, at this contender's point."""
        start = perf_counter_ns()
        reply: TopKReply = self.decoder.topk(hidden, k, **self.target)
        self._count(start, len(hidden), len(hidden), reply.answer)
        return reply

    def beam_step(self, hidden: Float32, scores: Float32, **options: Any) -> BeamStepReply:
        """As the decoder's, at this contender's point."""
        start = perf_counter_ns()
        reply: BeamStepReply = self.decoder.beam_step(hidden, scores, **options, **self.target)
        self._count(start, len(hidden), len(reply.tokens), reply.answer)
        return reply

    def _count(self, start: int, rows: int, groups: int, answer: Answer) -> None:
        self.nanoseconds += perf_counter_ns() - start
        self.calls += 1
        self.rows += rows
        self.groups += groups
        self.exact_rows += int(answer.exact.sum())
        low, high = answer.log_z_low, answer.log_z_high
        if low is not None and high is not None and self.target.get("normalizer") == "certified":
            self.settled += int((low == high).reshape(groups, -1).any(axis=1).sum())

    def figures(self) -> dict[str, Any]:
        """What was measured."""
        return {
            "steps": self.calls,
            "rows": self.rows,
            "us_per_step": self.nanoseconds / max(1, self.calls) / 1000,
            "us_per_row": self.nanoseconds / max(1, self.rows) / 1000,
            "proven_rows": self.exact_rows / max(1, self.rows),
            "settled_by_exact_log_z": self.settled / max(1, self.groups),
        }
