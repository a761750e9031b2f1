"""SVD-softmax on a GPU: a preview of all logits by two products, exact logits of the best.

PyTorch sums in its own order: if rounding decides the last candidates, they may differ from the
host's, or from another batch's.

Shape letters: R rank.
"""

import numpy as np
import torch
from torch import Tensor

from logitsieve.api.results import Float32, Int32, Int64
from logitsieve.gpu.device import computing, to_device, to_host
from logitsieve.gpu.heads.base import DeviceHead, Ranked, rank
from logitsieve.heads.svd import SvdHead


class GpuSvd(DeviceHead, SvdHead):
    def _prepare(self) -> None:
        super()._prepare()
        device, groups = self.matrix.device, self._arrays["preview"]
        with computing(device):
            self._basis = to_device(self._arrays["basis"], device)  # [R, D]
            columns = to_device(groups, device).transpose(1, 2)  # [V / 16, 16, R]
            self._columns = columns.reshape(-1, groups.shape[1])[: self._vocab_size]

    def must_finish(self, k: int) -> bool:
        return k > self.knobs["candidates"]

    def find(self, hidden: Tensor, k: int) -> Ranked:
        count = int(self.knobs["candidates"])
        scanned = torch.full((len(hidden),), count, dtype=torch.int32, device=hidden.device)
        exact = torch.zeros_like(scanned, dtype=torch.bool)
        if k > count:
            empty = hidden.new_empty(len(hidden), k)
            return Ranked(empty.int(), empty.double(), exact, scanned.fill_(-1))
        return Ranked(*rank(self.matrix, hidden, self._chosen(hidden), k), exact, scanned)

    def select(self, hidden: Float32, k: int) -> tuple[Int64, Int32]:
        with self.uploaded(hidden) as rows:
            chosen = to_host(self._chosen(rows)).astype(np.int32)
        return np.arange(0, chosen.size + 1, chosen.shape[1]), chosen.ravel()

    def _chosen(self, hidden: Tensor) -> Tensor:
        width, count = int(self.knobs["width"]), int(self.knobs["candidates"])
        turned = hidden @ self._basis[:width].T
        previews = torch.addmm(self.matrix.bias, turned, self._columns[:, :width].T)
        return previews.topk(count, dim=1).indices.int()
