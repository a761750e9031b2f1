"""The learned screen on a GPU: exact logits of the lists of each row's best clusters.

Routes equal the host's: by exact dots with the centroids.
"""

from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from logitsieve.gpu.device import computing, to_device
from logitsieve.gpu.heads.base import DeviceHead, Ranked, rank
from logitsieve.gpu.matrix import exact_logits
from logitsieve.heads._base.spec import Arrays
from logitsieve.heads.screen import ScreenHead


class DeviceLists(NamedTuple):
    centroids: Tensor  # float32 [C, D]
    biases: Tensor  # float32 [C], 0
    clusters: Tensor  # int32 [C], 0, 1, ...
    reaches: Tensor  # float64 [C] norms of centroids, times the part's `reaches`
    starts: Tensor  # int64 [C] first place of a list in `ids`
    lengths: Tensor  # int64 [C]
    ids: Tensor  # int32, and `longest` more, masked
    shortest: int
    longest: int  # L

    @classmethod
    def of(cls, arrays: Arrays, device: torch.device) -> Self:
        centroids, offsets = arrays["centroids"], arrays["offsets"].astype(np.int64)
        count, lengths = len(centroids), np.diff(offsets)
        reaches = np.linalg.norm(centroids.astype(np.float64), axis=1)
        if "reaches" in arrays:
            reaches = reaches * arrays["reaches"]
        longest = int(lengths.max())
        ids = np.append(arrays["ids"], np.zeros(longest, np.int32))
        host = (
            centroids, np.zeros(count, np.float32), np.arange(count, dtype=np.int32),
            reaches, offsets[:-1], lengths, ids,
        )  # fmt: skip
        with computing(device):
            fields: Any = *(to_device(each, device) for each in host), int(lengths.min()), longest
            return cls(*fields)


class GpuScreen(DeviceHead, ScreenHead):
    """Looks at the candidate lists of each row's best clusters; ignores `prescreen`."""

    def _prepare(self) -> None:
        super()._prepare()
        self._lists = DeviceLists.of(self._arrays, self.matrix.device)

    @property
    def columns(self) -> int:
        return int(self.knobs["probes"]) * self._lists.longest

    def must_finish(self, k: int) -> bool:
        return k > self._lists.shortest or self.knobs["escalate"] > -1

    def find(self, hidden: Tensor, k: int) -> Ranked:
        lists, rows = self._lists, len(hidden)
        chosen, far = self._routes(hidden)
        lengths = lists.lengths[chosen].masked_fill(far[:, None], 0)
        place = torch.arange(max(lists.longest, k), device=hidden.device)
        inside = place < lengths[..., None]
        ids = lists.ids[(lists.starts[chosen][..., None] + place).masked_fill(~inside, 0)]
        ids = ids.masked_fill(~inside, -1).view(rows, -1)
        if chosen.shape[1] > 1:
            ids = _distinct(ids)
        exact = torch.zeros(rows, dtype=torch.bool, device=hidden.device)
        scanned = lengths.sum(dim=1).masked_fill((ids >= 0).sum(dim=1) < k, -1)
        return Ranked(*rank(self.matrix, hidden, ids, k), exact, scanned.int())

    def _routes(self, hidden: Tensor) -> tuple[Tensor, Tensor]:
        lists, probes = self._lists, int(self.knobs["probes"])
        every = lists.clusters.expand(len(hidden), -1)
        dots = exact_logits(lists.centroids, lists.biases, hidden, every)
        dots, chosen = dots.sort(dim=1, descending=True, stable=True)
        norms = torch.linalg.vector_norm(hidden, dim=1, dtype=torch.float64)
        least = self.knobs["escalate"] * norms * lists.reaches[chosen[:, 0]]
        far = (dots[:, 0] < least) & (self.knobs["escalate"] > -1)
        return chosen[:, :probes], far


def _distinct(ids: Tensor) -> Tensor:
    ids = ids.sort(dim=1).values
    repeated = torch.zeros_like(ids, dtype=torch.bool)
    repeated[:, 1:] = ids[:, 1:] == ids[:, :-1]
    return ids.masked_fill(repeated, -1)
