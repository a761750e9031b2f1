"""The base of heads on a GPU: batches in buckets, arrays or tensors, in and out.

Shape letters: B batch rows, D hidden size, V vocabulary, K answers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import cached_property, partial
from threading import local
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor
from triton import next_power_of_2

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import ArrayLike, Bool, Candidates, Float32, TopK
from logitsieve.gpu.device import device_context
from logitsieve.gpu.plans import LaunchPlan, PlanOutput, empty_output
from logitsieve.gpu.plans.exact import fits
from logitsieve.gpu.runner import GpuArrays, PlanRunner
from logitsieve.heads._base.head import Head, checked_k, checked_knobs, ready_request, refuse_row
from logitsieve.heads._base.kernel_head import KernelHead
from logitsieve.heads._base.spec import PartSpec

LARGEST_BUCKET = 256  # rows at once; more are answered in turns
RUNNERS_KEPT = 32  # of a head in a thread: buckets times ks
WARM_K = (1, 5, 10)


def nothing(plan: Any, part: slice) -> None: ...


class Launch(NamedTuple):
    """A kind of plan, and what it reads besides hidden."""

    name: tuple[object, ...]  # of plans that are alike but for their size
    plan: Callable[[Tensor], LaunchPlan]
    fill: Callable[[Any, slice], None] = nothing  # writes what else the plan reads for those rows
    most: int = LARGEST_BUCKET  # rows at once

    def filling(self, part: slice) -> Callable[[Any], None]:
        return lambda plan: self.fill(plan, part)


def chunks(rows: int, most: int) -> Iterator[slice]:
    """Buckets of at most `most` rows, answered one after the other."""
    for start in range(0, rows, most):
        yield slice(start, min(rows, start + most))


def refuse_unanswered(bad: Bool) -> None:
    """InvalidRequest for the first row of hidden that `bad` [B] marks."""
    if bad.any():
        refuse_row(int(bad.argmax()))


class GpuHead(ABC):
    """The head `kind` whose answers a GPU finds. Immutable; any number of threads may call it."""

    borrows: ClassVar[tuple[str, ...]] = ()

    def __init__(self, kind: type[Head], gpu: GpuArrays, knobs: Mapping[str, float]) -> None:
        self._kind, self._gpu = kind, gpu
        self.name, self.knob_table, self.proves = kind.name, kind.knob_table, kind.proves
        self.part: PartSpec | None = kind.part
        self._arrays = gpu.parts[kind.part.name] if kind.part else {}
        self._local = local()
        self.knobs = self._held(checked_knobs(self.knob_table, {}, knobs))

    @abstractmethod
    def plan(self, hidden: Tensor, k: int) -> LaunchPlan:
        """The plan for k ids a row of hidden [B, D]."""

    def _held(self, knobs: Mapping[str, float]) -> Mapping[str, float]:
        if issubclass(self._kind, KernelHead):
            return self._kind.clamp_knobs(knobs, self._arrays, self._gpu.softmax)
        return dict(knobs)

    def fits(self, k: int) -> bool:
        """True where a plan finds k answers; else the head on the host does."""
        return fits(self._vocab_size, k)

    def with_knobs(self, **knobs: float) -> Self:
        """The same arrays at another operating point; InvalidKnob if unknown or out of range."""
        held = self._held(checked_knobs(self.knob_table, self.knobs, knobs))
        if held == self.knobs:
            return self  # with what it has captured
        other = copy(self)
        other._local = local()
        other.__dict__.pop("cpu_head", None)
        other.knobs = held
        return other

    def topk(self, hidden: ArrayLike, k: int, *, check: bool = False) -> TopK:
        """The k best tokens of each row of `hidden` [B, D] or [D].

        A tensor on the GPU is answered in tensors there, and nothing is waited for: a row that
        is not finite, or too large, has ids of -1, logits of NaN and exact False, or raises with
        `check`, which does wait. Anything else is answered in arrays, and raises InvalidRequest for
        such a row. More answers than a GPU's kernels find (64, or so many that the vocabulary has
        no 16 ids for each two) come from the host.
        """
        if (there := self.device_rows(hidden)) is not None:
            return self._tensors(there, k, check)
        hidden, rows, k = ready_request(hidden, k, self._dim, self._vocab_size)
        if not self.fits(k):
            return self.cpu_head.topk(hidden, k)
        found = (
            np.empty((rows, k), np.int32),
            np.empty((rows, k), np.float32),
            np.empty(rows, np.bool_),
            np.empty(rows, np.int32),
        )
        self._find_arrays(Launch(("topk", k), partial(self.plan, k=k)), hidden, found)
        refuse_unanswered(found[0][:, 0] < 0)
        return TopK(*found)

    def device_rows(self, hidden: ArrayLike) -> Tensor | None:
        """[B, D] of a tensor on the GPU, and None for anything else.

        InvalidRequest names what is wrong with it.
        """
        if isinstance(hidden, Tensor) and hidden.device == self.device:
            return self._ready(hidden)
        return None

    @property
    def device(self) -> torch.device:
        return self._gpu.device

    @contextmanager
    def launching(self) -> Iterator[None]:
        """The context of a launch; raises as `device_context` does."""
        with device_context(self.device), self._gpu.launch_lock:
            yield

    def _tensors(self, hidden: Tensor, k: int, check: bool) -> TopK:
        k, rows = checked_k(k, self._vocab_size), len(hidden)
        if self.fits(k):
            found = empty_output(rows, k, hidden.device)
            self._find_tensors(Launch(("topk", k), partial(self.plan, k=k)), hidden, found)
        else:
            found = self._from_host(hidden, k)
        if check:
            refuse_unanswered((found.ids[:, 0] < 0).cpu().numpy())
        return TopK(found.ids, found.logits, found.exact.bool(), found.scanned)  # type: ignore[arg-type]

    def _from_host(self, hidden: Tensor, k: int) -> PlanOutput:
        """The host's answers; rows that it would refuse are as the GPU has them."""
        rows = hidden.float().cpu()
        good = torch.isfinite(rows).all(1) & (rows.double().norm(dim=1) < 1e30)
        found = empty_output(len(rows), k, torch.device("cpu"))
        found.ids.fill_(-1), found.logits.fill_(torch.nan)
        found.exact.zero_(), found.scanned.zero_()
        if good.any():
            top = self.cpu_head.topk(rows[good].numpy(), k)
            for mine, theirs in zip(found, top, strict=True):
                mine[good] = torch.from_numpy(theirs).to(mine.dtype)
        return PlanOutput(*(each.to(hidden.device) for each in found))

    def candidates(self, hidden: ArrayLike, k: int) -> Candidates:
        """Every row of W that the head on the host would look at, with exact logits, in arrays."""
        return self.cpu_head.candidates(hidden, k)

    @cached_property
    def cpu_head(self) -> Head:
        """The same head on the host, over the same arrays; made at its first use."""
        return self._gpu.cpu_head(self.name, self.knobs)

    def warm(self) -> None:
        """Compile and capture what batches up to the largest bucket need, for the usual ks."""
        buckets = [1 << power for power in range(LARGEST_BUCKET.bit_length())]
        for rows in buckets if self._gpu.graphs else [1]:
            for k in WARM_K:
                if self.fits(k):
                    self._runner(Launch(("topk", k), partial(self.plan, k=k)), rows)

    def _find_arrays(self, launch: Launch, hidden: Float32, found: Sequence[np.ndarray]) -> None:
        """Run `launch` for the rows of hidden [B, D], a bucket at a time."""
        for part in chunks(len(hidden), launch.most):
            runner = self._runner(launch, part.stop - part.start)
            answers = runner.answer_host(hidden[part], launch.filling(part))
            for mine, theirs in zip(found, answers, strict=True):
                mine[part] = theirs

    def _find_tensors(self, launch: Launch, hidden: Tensor, found: Sequence[Tensor]) -> None:
        """The same on the GPU; nothing is waited for."""
        for part in chunks(len(hidden), launch.most):
            runner = self._runner(launch, part.stop - part.start)
            own = [each[part] for each in found]
            runner.answer(hidden[part], own, launch.filling(part))

    def _runner(self, launch: Launch, rows: int) -> PlanRunner:
        """This thread's runner for that many rows."""
        runners: OrderedDict[tuple[object, ...], PlanRunner] = self._local.__dict__.setdefault(
            "runners", OrderedDict()
        )
        key = (*launch.name, next_power_of_2(rows))
        runner = runners.pop(key, None) or PlanRunner(self._gpu, launch.plan, next_power_of_2(rows))
        runners[key] = runner
        if len(runners) > RUNNERS_KEPT:
            runners.popitem(last=False)
        return runner

    def _ready(self, hidden: Tensor) -> Tensor:
        """[B, D] of a floating type; InvalidRequest names what is wrong."""
        rows = hidden[None] if hidden.ndim == 1 else hidden
        if rows.ndim != 2 or rows.shape[1] != self._dim or not len(rows):
            got = f"shape {list(hidden.shape)}"
            raise InvalidRequest("hidden", got, f"[B, {self._dim}] or [{self._dim}], B >= 1")
        if not rows.is_floating_point():
            raise InvalidRequest("hidden", f"dtype {rows.dtype}", "a floating type")
        return rows.detach()

    @property
    def _dim(self) -> int:
        return self._gpu.matrix.dim

    @property
    def _vocab_size(self) -> int:
        return self._gpu.matrix.rows
