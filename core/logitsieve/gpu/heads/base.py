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

import torch
from torch import Tensor
from triton import next_power_of_2

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import ArrayLike, Candidates, TopK
from logitsieve.gpu.device import device_context, to_host
from logitsieve.gpu.plans import LaunchPlan, PlanOutput, empty_output
from logitsieve.gpu.plans.exact import fits
from logitsieve.gpu.runner import GpuArrays, PlanRunner
from logitsieve.heads._base.head import Head, checked_k, checked_knobs, ready_request, refuse_row
from logitsieve.heads._base.kernel_head import KernelHead
from logitsieve.heads._base.spec import PartSpec

LARGEST_BUCKET = 256  # rows at once; more are answered in turns
RUNNERS_KEPT = 32  # of a head in a thread: buckets times ks
WARM_K = (1, 5, 10)


class Launch(NamedTuple):
    """A kind of plan, and what it reads besides hidden."""

    name: tuple[object, ...]  # of plans that are alike but for their size
    plan: Callable[[Tensor], LaunchPlan]
    fill: Callable[[slice, Any], None] = lambda part, plan: None  # writes its inputs for such rows
    most: int = LARGEST_BUCKET  # rows at once


def chunks(rows: int, most: int) -> Iterator[slice]:
    """Buckets of at most `most` rows, answered one after the other."""
    for start in range(0, rows, most):
        yield slice(start, min(rows, start + most))


def refuse_unanswered(bad: Tensor) -> None:
    """InvalidRequest for the first row of hidden that `bad` [B] marks."""
    if (bad := bad.int().cpu()).any():
        refuse_row(int(bad.argmax()))


class GpuHead(ABC):
    """The head `kind` whose answers a GPU finds. Immutable; any number of threads may call it."""

    borrows: ClassVar[tuple[str, ...]] = ()

    def __init__(self, kind: type[Head], gpu: GpuArrays, knobs: Mapping[str, float]) -> None:
        self._kind, self._gpu, self.device = kind, gpu, gpu.device
        self._dim, self._vocab_size = gpu.matrix.dim, gpu.matrix.rows
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
        if (tensor := self.device_rows(hidden)) is not None:
            output = self._topk(tensor, checked_k(k, self._vocab_size))
            if check:
                refuse_unanswered(output.ids[:, 0] < 0)
            return TopK(*output)  # type: ignore[arg-type]
        hidden, _, k = ready_request(hidden, k, self._dim, self._vocab_size)
        if not self.fits(k):
            return self.cpu_head.topk(hidden, k)
        output = self._topk(hidden, k)
        refuse_unanswered(output.ids[:, 0] < 0)
        return TopK(*(to_host(each).copy() for each in output))  # arrays that own their data

    def device_rows(self, hidden: ArrayLike) -> Tensor | None:
        """[B, D] of a tensor on the GPU, and None for anything else.

        InvalidRequest names what is wrong with it.
        """
        if isinstance(hidden, Tensor) and hidden.device == self.device:
            return self._ready(hidden)
        return None

    @contextmanager
    def launching(self) -> Iterator[None]:
        """The context of a launch; raises as `device_context` does."""
        with device_context(self.device), self._gpu.launch_lock:
            yield

    def _topk(self, hidden: Any, k: int) -> PlanOutput:
        """Answers beside a tensor on the GPU, or on the host; `exact` in bools."""
        device = hidden.device if isinstance(hidden, Tensor) else torch.device("cpu")
        if self.fits(k):
            output = empty_output(len(hidden), k, device)
            self._find(Launch(("topk", k), partial(self.plan, k=k)), hidden, output)
        else:
            output = self._from_host(hidden, k)
        return output._replace(exact=output.exact.bool())

    def _from_host(self, hidden: Tensor, k: int) -> PlanOutput:
        """The host's answers; rows that it would refuse are as the GPU has them."""
        rows = hidden.float().cpu()
        good = torch.isfinite(rows).all(1) & (rows.double().norm(dim=1) < 1e30)
        output = empty_output(len(rows), k, torch.device("cpu"))
        for buffer, unanswered in zip(output, (-1, torch.nan, 0, 0), strict=True):
            buffer.fill_(unanswered)
        if good.any():
            top = self.cpu_head.topk(rows[good].numpy(), k)
            for buffer, answer in zip(output, top, strict=True):
                buffer[good] = torch.from_numpy(answer).to(buffer.dtype)
        return PlanOutput(*(each.to(hidden.device) for each in output))

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

    def _find(self, launch: Launch, hidden: Any, outputs: Sequence[Tensor]) -> None:
        """Run `launch` for the rows of hidden [B, D], an array or a tensor, a bucket at a time."""
        for part in chunks(len(hidden), launch.most):
            runner = self._runner(launch, part.stop - part.start)
            rooms = [output[part] for output in outputs]
            runner.answer(hidden[part], rooms, partial(launch.fill, part))

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
