"""The base of heads on a GPU: the head on the host with its answers found on a device.

Everything that such a head does not find there (candidates, bounds, previews of all logits) is
inherited from the head on the host.

Shape letters: B rows of hidden, D hidden size, K answers.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import ArrayLike, Float32, TopK
from logitsieve.gpu.device import computing, timed, to_device, to_host
from logitsieve.gpu.matrix import DeviceMatrix
from logitsieve.gpu.ranking import Ranked, joined
from logitsieve.heads._base.head import Softmax, checked_k, ready_request, refuse_row
from logitsieve.heads._base.kernel_head import Head


class DeviceSoftmax(Softmax):
    """A softmax that is on a device, too: `on_device`."""

    def __init__(self, softmax: Softmax, device: torch.device) -> None:
        super().__init__(softmax.matrix, softmax.bias)
        self.descriptor = softmax.descriptor  # which reads all of W
        self.on_device = DeviceMatrix(softmax, device)


class DeviceHead(Head):
    """Answers arrays in arrays, and tensors on its device in tensors there."""

    _softmax: DeviceSoftmax

    @property
    def matrix(self) -> DeviceMatrix:
        """W and its bias on the device."""
        return self._softmax.on_device

    @abstractmethod
    def find(self, hidden: Tensor, k: int) -> Ranked:
        """Return the k best for admissible rows of hidden [B, D]; rows may be left open."""

    def finish(self, hidden: Tensor, k: int) -> Ranked:
        """Return the k best for rows that `find` left open: by default the fallback's."""
        assert isinstance(self._fallback, DeviceHead)
        return self._fallback.find_all(hidden, k, True)

    def must_finish(self, k: int) -> bool:
        """Return True where open rows are to be expected, so that a tensor's, too, are finished."""
        return False

    @property
    def columns(self) -> int:
        """Return how many numbers `find` holds for a row of hidden."""
        return self._vocab_size

    def topk(self, hidden: ArrayLike, k: int) -> TopK:
        """Return the k best tokens of each row of `hidden` [B, D] or [D].

        A tensor on the device is answered in tensors there, mostly without waiting for it: a row
        that is not finite, or too large, has ids of -1, logits of NaN and `exact` False, and a row
        of `exact` with too many ids within rounding of the k-th has `exact` False.
        """
        if (tensor := self.device_rows(hidden)) is None:
            hidden, _, k = ready_request(hidden, k, self._dim, self._vocab_size)
            with self.uploaded(hidden) as rows:
                found: Any = self._answer(rows, k, True)
                ids, logits, exact, scanned = map(to_host, found)
                return TopK(ids, logits, exact, scanned, exact & (not self.proves))
        k = checked_k(k, self._vocab_size)
        with computing(self.matrix.device):
            fits = self.matrix.admissible(tensor)
            rows = tensor.masked_fill(~fits[:, None], 0.0)
            found = self._answer(rows, k, self.must_finish(k))
            return TopK(
                found.ids.masked_fill(~fits[:, None], -1),
                found.logits.masked_fill(~fits[:, None], torch.nan),
                found.exact & fits,
                found.scanned * fits,
                found.exact & fits & (not self.proves),
            )

    def device_rows(self, hidden: Any) -> Any:
        """Return float32 [B, D] of a tensor on the device, None for anything else.

        InvalidRequest names what is wrong with the tensor.
        """
        if not isinstance(hidden, Tensor) or hidden.device != self.matrix.device:
            return None
        rows = hidden[None] if hidden.ndim == 1 else hidden
        if rows.ndim != 2 or rows.shape[1] != self._dim or not len(rows):
            got = f"shape {list(hidden.shape)}"
            raise InvalidRequest("hidden", got, f"[B, {self._dim}] or [{self._dim}], B >= 1")
        if not rows.is_floating_point():
            raise InvalidRequest("hidden", f"dtype {rows.dtype}", "a floating type")
        return rows.detach().float()

    @contextmanager
    def uploaded(self, hidden: Float32) -> Iterator[Tensor]:
        """Yield rows of hidden on the device; InvalidRequest for one that heads refuse."""
        device = self.matrix.device
        with computing(device), timed(device):
            rows = to_device(hidden, device)
            fits = self.matrix.admissible(rows)
            if not bool(fits.all()):
                refuse_row(int(fits.int().argmin()))
            yield rows

    def find_all(self, hidden: Tensor, k: int, finished: bool) -> Ranked:
        """Return the k best for admissible rows; `finished` waits, and leaves no row open."""
        slices = self.matrix.slices(len(hidden), self.columns)
        found = joined([self.find(hidden[part], k) for part in slices])
        if finished and (open_ := (found.scanned < 0).nonzero()[:, 0]).numel():
            found.replace(open_, self.finish(hidden[open_], k))
        return found

    def _answer(self, hidden: Tensor, k: int, finished: bool) -> Ranked:
        """Return the same as answers have it, logits in float32."""
        found = self.find_all(hidden, k, finished)
        scanned = torch.where(found.scanned < 0, self._vocab_size, found.scanned)
        return found._replace(logits=found.logits.float(), scanned=scanned.int())
