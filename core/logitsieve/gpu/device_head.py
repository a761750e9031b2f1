"""The base of heads on a GPU, which find the answers of a host's head on a device.

float32 logits choose candidates, exact logits decide. `candidates` is the host's.
"""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import ArrayLike, Float32, Int32, TopK
from logitsieve.gpu.device import computing, timed, to_device, to_host
from logitsieve.gpu.matrix import DeviceMatrix
from logitsieve.heads._base.head import Softmax, checked_k, ready_request, refuse_row
from logitsieve.heads._base.kernel_head import Head

EXTRA_CANDIDATES = 64  # candidates beyond k
BIAS_ERROR = 2.0**-22  # four times float32's rounding error


class Ranked(NamedTuple):
    """The k best of each row, best first, ties by the lower id. An open row has no answer yet."""

    ids: Tensor  # int32 [B, K]
    logits: Tensor  # float64 [B, K]
    proven: Tensor  # bool [B] proven to be the best of all V
    scanned: Tensor  # int32 [B] rows of W scanned; -1 for an open row

    def replace(self, chosen: Tensor, other: Self) -> None:
        for mine, theirs in zip(self, other, strict=True):
            mine[chosen] = theirs


def joined(parts: list[Ranked]) -> Ranked:
    return parts[0] if len(parts) == 1 else Ranked(*map(torch.cat, zip(*parts, strict=True)))


def rank(matrix: DeviceMatrix, hidden_states: Tensor, ids: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return the k best of int32 ids [B, M], -1 for none, and their exact logits."""
    ids = ids.sort(dim=1).values  # a stable sort then orders ties by id
    logits, places = matrix.logits64(hidden_states, ids).sort(dim=1, descending=True, stable=True)
    return ids.gather(1, places[:, :k]), logits[:, :k]


def rank_by_scores(matrix: DeviceMatrix, hidden_states: Tensor, k: int) -> Ranked:
    """Return the k best of all V ids for admissible rows of hidden_states [B, D].

    Let s be a row's k-th largest float32 logit. Before the bias is added, each is within `slack` of
    the exact one, so k exact logits are at least s - slack, and the float32 logit of each of the k
    best is at least s - 2 slack, less BIAS_ERROR of s and of slack, as adding the bias rounds
    twice. If the least candidate is below that, no other id is among the k best. Otherwise, for
    example with ties, the row stays open.
    """
    vocab_size = matrix.vocab_size
    scores, chosen = matrix.scores(hidden_states).topk(min(vocab_size, k + EXTRA_CANDIDATES), dim=1)
    worst = scores[:, k - 1].double()
    floor = (
        worst - 2.0 * (1.0 + BIAS_ERROR) * matrix.slack(hidden_states) - BIAS_ERROR * worst.abs()
    )
    settled = scores[:, -1].double() < floor
    if scores.shape[1] == vocab_size:
        settled = torch.ones_like(settled)
    scanned = torch.where(settled, vocab_size, -1).int()
    return Ranked(*rank(matrix, hidden_states, chosen.int(), k), settled, scanned)


def rank_of(logits: Tensor, k: int) -> Ranked:
    """Return the k best of all logits [B, V]; -1 for those of -inf."""
    best, ids = logits.sort(dim=1, descending=True, stable=True)
    best, ids = best[:, :k], ids[:, :k].int()
    proven = torch.ones(len(logits), dtype=torch.bool, device=logits.device)
    return Ranked(
        ids.masked_fill(best == -torch.inf, -1), best, proven, proven.int() * logits.shape[1]
    )


class DeviceSoftmax(Softmax):
    def __init__(self, softmax: Softmax, device: torch.device) -> None:
        super().__init__(softmax.matrix, softmax.bias)
        self.descriptor = softmax.descriptor  # to make one would read all of W
        self.on_device = DeviceMatrix(softmax, device)


class DeviceHead(Head):
    """Answers arrays with arrays, and tensors on its device with tensors there."""

    _softmax: DeviceSoftmax

    @property
    def matrix(self) -> DeviceMatrix:
        return self._softmax.on_device

    @abstractmethod
    def find(self, hidden_states: Tensor, k: int) -> Ranked:
        """Return the k best for admissible rows of hidden_states [B, D]; rows may be left open."""

    def finish(self, hidden_states: Tensor, k: int) -> Ranked:
        assert isinstance(self._fallback, DeviceHead)
        return self._fallback.find_all(hidden_states, k, True)

    def masked(self, mask: Int32) -> Any:
        """See `Head.masked`. The fallback answers, as lists may have few of the allowed ids."""
        assert self._fallback is not None
        return self._fallback.masked(mask)

    def must_finish(self, k: int) -> bool:
        """Return True if open rows are likely; for tensors they are finished only then."""
        return False

    @property
    def columns(self) -> int:
        """The numbers that `find` holds for each row of hidden_states."""
        return self._vocab_size

    def topk(self, hidden_states: ArrayLike, k: int) -> TopK:
        """Return the k best tokens of each row of `hidden_states` [B, D] or [D].

        A tensor on the device is answered with tensors, mostly without waiting. Then `proven` is
        False for open rows, and for rows not finite or too large, with ids of -1 and logits of NaN.
        """
        if (tensor := self.device_rows(hidden_states)) is None:
            hidden_states, _, k = ready_request(hidden_states, k, self._dim, self._vocab_size)
            with self.uploaded(hidden_states) as rows:
                found: Any = self._answer(rows, k, True)
                ids, logits, proven, scanned = map(to_host, found)
                return TopK(ids, logits, proven, scanned, proven & (not self.proves))
        k = checked_k(k, self._vocab_size)
        with computing(self.matrix.device):
            fits = self.matrix.admissible(tensor)
            rows = tensor.masked_fill(~fits[:, None], 0.0)
            found = self._answer(rows, k, self.must_finish(k))
            return TopK(
                found.ids.masked_fill(~fits[:, None], -1),
                found.logits.masked_fill(~fits[:, None], torch.nan),
                found.proven & fits,
                found.scanned * fits,
                found.proven & fits & (not self.proves),
            )

    def device_rows(self, hidden_states: Any) -> Any:
        """Return float32 [B, D] of a tensor on the device (or InvalidRequest), else None."""
        if not isinstance(hidden_states, Tensor) or hidden_states.device != self.matrix.device:
            return None
        rows = hidden_states[None] if hidden_states.ndim == 1 else hidden_states
        if rows.ndim != 2 or rows.shape[1] != self._dim or not len(rows):
            got = f"shape {list(hidden_states.shape)}"
            raise InvalidRequest("hidden_states", got, f"[B, {self._dim}] or [{self._dim}], B >= 1")
        if not rows.is_floating_point():
            raise InvalidRequest("hidden_states", f"dtype {rows.dtype}", "a floating type")
        return rows.detach().float()

    @contextmanager
    def uploaded(self, hidden_states: Float32) -> Iterator[Tensor]:
        device = self.matrix.device
        with computing(device), timed(device):
            rows = to_device(hidden_states, device)
            fits = self.matrix.admissible(rows)
            if not bool(fits.all()):
                refuse_row(int(fits.int().argmin()))
            yield rows

    def find_all(self, hidden_states: Tensor, k: int, finished: bool) -> Ranked:
        """Return the k best for admissible rows; `finished` waits, and leaves no row open."""
        slices = self.matrix.slices(len(hidden_states), self.columns)
        found = joined([self.find(hidden_states[part], k) for part in slices])
        if finished and (open_ := (found.scanned < 0).nonzero()[:, 0]).numel():
            found.replace(open_, self.finish(hidden_states[open_], k))
        return found

    def _answer(self, hidden_states: Tensor, k: int, finished: bool) -> Ranked:
        found = self.find_all(hidden_states, k, finished)
        scanned = torch.where(found.scanned < 0, self._vocab_size, found.scanned)
        return found._replace(logits=found.logits.float(), scanned=scanned.int())
