from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Float64, Int32, Int64

LARGEST_SEED = 2**31 - 1  # the largest that faiss takes
_WORD = 2**64
_GOLDEN = 0x9E3779B97F4A7C15  # odd, so that ranks have different keys


@dataclass(frozen=True)
class Targets:
    """classes[p] is a target of row rows[p], int64 [P]; rows ascend, and none is left out."""

    rows: Tensor
    classes: Tensor
    count: int
    single: bool

    def of(self, values_B: Tensor) -> Tensor:
        return values_B if self.single else values_B.index_select(0, self.rows)

    def shares(self, dtype: torch.dtype) -> Tensor:
        if self.single:
            return torch.ones(self.count, dtype=dtype, device=self.rows.device)
        return 1 / self.of(torch.bincount(self.rows, minlength=self.count).to(dtype))

    def sums(self, values_P: Tensor) -> Tensor:
        if self.single:
            return values_P
        return values_P.new_zeros(self.count).index_add_(0, self.rows, values_P)

    def means(self, values_P: Tensor) -> Tensor:
        return self.sums(values_P * self.shares(values_P.dtype))

    def log_sums(self, values_P: Tensor) -> Tensor:
        if self.single:
            return values_P
        lowest_B = values_P.new_full((self.count,), -torch.inf)
        most_B = lowest_B.scatter_reduce_(0, self.rows, values_P.detach(), "amax")
        return self.sums((values_P - most_B[self.rows]).exp()).log() + most_B

    def padded(self) -> Int64:
        classes = self.classes.cpu().numpy()
        if self.single:
            return np.ascontiguousarray(classes[:, None])
        rows = self.rows.cpu().numpy()
        counts_B = np.bincount(rows, minlength=self.count)
        out = np.full((self.count, int(counts_B.max(initial=1))), -1, np.int64)
        firsts_B = np.cumsum(counts_B) - counts_B
        out[rows, np.arange(len(rows)) - firsts_B[rows]] = classes
        return out

    def slice(self, first: int, last: int) -> Targets:
        if self.single:
            return Targets(self.rows[: last - first], self.classes[first:last], last - first, True)
        ends = torch.tensor([first, last], device=self.rows.device)
        start, stop = torch.searchsorted(self.rows, ends).tolist()
        rows, classes = self.rows[start:stop] - first, self.classes[start:stop]
        return Targets(rows, classes, last - first, False)


@dataclass(frozen=True)
class SharedCandidates:
    """A set for all rows: ids int64 [M], which may repeat, and -log of their expected counts.

    The loss masks candidates that are a row's targets.
    """

    ids: Tensor
    log_weights: Tensor


@dataclass(frozen=True)
class RaggedCandidates:
    """A set for each row: ids[offsets[r] : offsets[r+1]], offsets int64 [B+1]."""

    offsets: Tensor
    ids: Tensor
    log_weights: Tensor

    @classmethod
    def from_numpy(cls, offsets: Int64, ids: Int32, log_weights: Float64) -> RaggedCandidates:
        ids_E = torch.from_numpy(ids).long()
        return cls(torch.from_numpy(offsets), ids_E, torch.from_numpy(log_weights))


Candidates: TypeAlias = SharedCandidates | RaggedCandidates


def with_targets(drawn: Candidates, classes_P: Tensor) -> Candidates:
    """Return the candidates, with each of `classes` once, at log-weight 0, in every set."""
    ids = torch.unique(classes_P).to(drawn.ids.device)
    zeros = drawn.log_weights.new_zeros(len(ids))
    kept = ~torch.isin(drawn.ids, ids)
    other_ids, other_weights = drawn.ids[kept], drawn.log_weights[kept]
    if isinstance(drawn, SharedCandidates):
        return SharedCandidates(torch.cat([ids, other_ids]), torch.cat([zeros, other_weights]))
    rows_B = torch.arange(len(drawn.offsets) - 1, device=ids.device)
    owners = rows_B.repeat_interleave(drawn.offsets.diff().to(ids.device))[kept]
    order = torch.cat([rows_B.repeat_interleave(len(ids)), owners]).argsort(stable=True)
    counts_B = torch.bincount(owners, minlength=len(rows_B)) + len(ids)
    return RaggedCandidates(
        torch.cat([counts_B.new_zeros(1), counts_B.cumsum(0)]),
        torch.cat([ids.repeat(len(rows_B)), other_ids])[order],
        torch.cat([zeros.repeat(len(rows_B)), other_weights])[order],
    )


@dataclass(frozen=True)
class LossBatch:
    """Hidden states [B, D] of rows that have a target; kept: bool [R] (None: all rows have one)."""

    hidden_states: Tensor
    targets: Targets
    kept: Tensor | None

    def spread(self, losses_B: Tensor, shape: torch.Size) -> Tensor:
        if self.kept is None:
            return losses_B.view(shape)
        return losses_B.new_zeros(self.kept.numel()).masked_scatter(self.kept, losses_B).view(shape)


def read_batch(
    hidden_states: Tensor, target: Tensor, in_features: int, n_classes: int, ignore_index: int
) -> LossBatch:
    """Read hidden_states [..., D] and target [...], or [..., L], of which duplicates count once."""
    check_hidden(hidden_states, in_features)
    several = target.ndim == hidden_states.ndim
    expected = hidden_states.shape[:-1]
    if tuple(target.shape[: len(expected)]) != tuple(expected) or target.ndim > hidden_states.ndim:
        allowed = f"{tuple(expected)}, or one more dimension for several targets a row"
        raise InvalidRequest("target", f"shape {tuple(target.shape)}", allowed)
    if target.dtype.is_floating_point or target.dtype == torch.bool or target.dtype.is_complex:
        raise InvalidRequest("target", target.dtype, "integers")
    rows = prod(expected)
    classes_RL = target.reshape(rows, -1).long()
    named_RL = classes_RL != ignore_index
    _check_range(classes_RL, named_RL, n_classes, ignore_index)
    flat = hidden_states.reshape(rows, in_features)
    if bool(named_RL.all()) and not several:
        every = torch.arange(rows, device=target.device)
        return LossBatch(flat, Targets(every, classes_RL[:, 0], rows, True), None)
    present = named_RL.any(1)
    full = bool(present.all())
    hidden_BD, named, classes = (x if full else x[present] for x in (flat, named_RL, classes_RL))
    rows_P, classes_P = named.nonzero()[:, 0], classes[named]
    if several:
        pairs = torch.unique(rows_P * n_classes + classes_P)
        rows_P, classes_P = pairs // n_classes, pairs % n_classes
    targets = Targets(rows_P, classes_P, len(hidden_BD), not several)
    return LossBatch(hidden_BD, targets, None if full else present)


def check_hidden(hidden_states: Tensor, in_features: int) -> None:
    if hidden_states.ndim < 1 or hidden_states.shape[-1] != in_features:
        raise InvalidRequest(
            "hidden_states", f"shape {tuple(hidden_states.shape)}", f"[..., {in_features}]"
        )
    if not hidden_states.dtype.is_floating_point:
        raise InvalidRequest("hidden_states", hidden_states.dtype, "a floating point type")
    if hidden_states.numel() == 0:
        raise InvalidRequest(
            "hidden_states", f"shape {tuple(hidden_states.shape)}", "at least one row"
        )
    if not bool(torch.isfinite(hidden_states.detach()).all()):
        raise InvalidRequest("hidden_states", "NaN or infinity", "finite numbers")


def _check_range(classes: Tensor, named: Tensor, n_classes: int, ignore_index: int) -> None:
    wrong = named & ((classes < 0) | (classes >= n_classes))
    if bool(wrong.any()):
        got = int(classes[wrong][0])
        raise InvalidRequest("target", got, f"0 .. {n_classes - 1}, or {ignore_index} for none")


@dataclass(frozen=True)
class StepRng:
    """Random numbers of one step, on the CPU; each `draw` is an independent sequence."""

    key: int
    step: int

    def uniforms(self, count: int, draw: int = 0) -> Tensor:
        bits = np.random.Philox(key=self.key, counter=[0, 0, draw, self.step])
        return torch.from_numpy(np.random.Generator(bits).random(count))


class Randomness:
    """Random numbers by counter, so that seed and step are all of their state."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.step = 0

    def next(self) -> StepRng:
        step = StepRng((self.seed + _rank() * _GOLDEN) % _WORD, self.step)
        self.step += 1
        return step


def processes() -> int:
    return torch.distributed.get_world_size() if _together() else 1


def _rank() -> int:
    return torch.distributed.get_rank() if _together() else 0


def _together() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()
