"""k-means softmax: the classes in the clusters that fit the context best, and a uniform sample.

Igbinedion, Phillips, Levy, Fast Softmax Sampling for Deep Neural Networks (papers/004), with its
formulas corrected (docs/training/kmeans.md). Clusters are those of the `ivf` head: Auvolat et al.
2015, Clustering is Efficient for Approximate Maximum Inner Product Search. The paper's nlist = 1 is
a search of everything.

Shape letters: B rows, D hidden size, V classes, C clusters, M targets of a row.
"""

from __future__ import annotations

from typing import Unpack

import numpy as np
import torch
from torch import Tensor

from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Int32, Int64
from logitsieve.heads._base.clustering import cluster_arrays
from logitsieve.heads._base.head import Softmax
from logitsieve.training.autograd.rng import Step
from logitsieve.training.autograd.scratch import Scratch
from logitsieve.training.kernels.lookup import look_up, look_up_together
from logitsieve.training.losses.best import BestOptions, BestSoftmax, root
from logitsieve.training.losses.loss import at_least

ITERATIONS = 10  # of k-means: a structure that lives for some steps needs no more
UNIFORM = 5  # |T| = 5 |S| (papers/004)


class InvertedLists:
    """Rows by cluster (a proposal.Structure). An update clusters all rows anew, as the paper does.

    A row that moves between updates stays in its list: the loss computes its logit anew.
    """

    def __init__(self, n_classes: int, n_lists: int, seed: int, *, normalized: bool) -> None:
        self.n_classes, self.n_lists, self.seed = n_classes, n_lists, seed
        self.normalized = normalized
        self.arrays: dict[str, np.ndarray] = {}
        self.extents = np.zeros((0, 3), np.int32)
        self.scratch = Scratch()

    def rebuild(self, weight: Tensor, bias: Tensor | None) -> None:
        """k-means of all rows."""
        rows = weight.detach().to("cpu", torch.float32)
        if self.normalized:
            rows = torch.nn.functional.normalize(rows, dim=-1)
        biases = torch.zeros(len(rows)) if bias is None else bias.detach().view(-1)
        softmax = Softmax(
            np.ascontiguousarray(rows.numpy()),
            np.ascontiguousarray(biases.to("cpu", torch.float32).numpy()),
        )
        self._hold(cluster_arrays(softmax, self.n_lists, ITERATIONS, self.seed))

    def update(self, rows: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        """k-means of all rows, whichever moved."""
        self.rebuild(weight, bias)

    def probed(self, hidden_BD: Tensor, nprobe: int) -> Int32:
        """int32 [B, nprobe]: the lists whose centroids have the largest logits."""
        hidden = hidden_BD.detach().to("cpu", torch.float32)
        centroids = torch.from_numpy(self.arrays["centroids"])
        scores_BC = hidden @ centroids.T + torch.from_numpy(self.arrays["biases"])
        best = scores_BC.topk(min(nprobe, scores_BC.shape[1]), dim=1, sorted=False).indices
        return np.ascontiguousarray(best.numpy(), np.int32)

    def look_up(self, lists_BP: Int32, targets_BM: Int64, random: Step) -> tuple[Int64, Int32]:
        """CSR (offsets, ids) of all that a row's lists hold, without its targets (padded by -1)."""
        offsets, ids, _ = look_up(
            lists_BP,
            self.extents,
            self.arrays["ids"],
            targets_BM,
            self.n_classes,
            False,
            np.uint64(random.key),
            np.uint64(random.step),
            self.scratch.zeros("counts", self.n_classes, np.uint16),
            self.scratch.zeros("found", self.n_classes + 1, np.int32),
        )
        return offsets, ids

    def look_up_together(self, lists_BP: Int32, targets_BM: Int64, limit: int) -> Int32:
        """At most `limit` ids that most rows' lists hold, without any row's targets."""
        ids: Int32 = look_up_together(
            lists_BP,
            self.extents,
            self.arrays["ids"],
            targets_BM,
            limit,
            self.scratch.zeros("votes", self.n_classes, np.int32),
            self.scratch.zeros("found", self.n_classes + 1, np.int32),
            self.scratch.zeros("visits", len(self.extents), np.int32),
        )
        return ids

    def state_dict(self) -> dict[str, object]:
        """Centroids, lists, and the seed of those to come."""
        arrays = {name: torch.from_numpy(array) for name, array in self.arrays.items()}
        return {"seed": self.seed, **arrays}

    def load_state_dict(self, state: dict[str, object]) -> None:
        """Take over another's lists; raises InvalidRequest if they are of other classes."""
        arrays = {n: each.cpu().numpy() for n, each in state.items() if isinstance(each, Tensor)}
        if arrays["ids"].size != self.n_classes:
            allowed = f"lists of {self.n_classes} classes"
            raise InvalidRequest("state_dict", f"lists of {arrays['ids'].size}", allowed)
        seed = state["seed"]
        assert isinstance(seed, int)
        self.seed = seed
        self._hold(arrays)

    def _hold(self, arrays: dict[str, np.ndarray]) -> None:
        self.arrays = arrays
        starts, sizes = arrays["offsets"][:-1], np.diff(arrays["offsets"])
        self.extents = np.ascontiguousarray(np.stack([starts, sizes, sizes], axis=1), np.int32)


class KMeansSoftmax(BestSoftmax):
    """S: the `nprobe` best of `n_lists` clusters (default 4 sqrt V).

    k: how many classes those should hold on average, which nprobe follows from if it is not given.
    All that they hold is in a row's S. n_uniform: default 5 k. The paper's period p is `every` of
    follow.
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        *,
        n_lists: int | None = None,
        nprobe: int | None = None,
        **options: Unpack[BestOptions],
    ) -> None:
        super().__init__(in_features, n_classes, **options)
        n_lists = root(n_classes, 4) if n_lists is None else n_lists
        at_least("n_lists", n_lists, 1, n_classes)
        self.nprobe = max(1, round(self.k * n_lists / n_classes)) if nprobe is None else nprobe
        at_least("nprobe", self.nprobe, 1, n_lists)
        self.lists = InvertedLists(
            n_classes, n_lists, self.random.seed, normalized=self.law.scale is not None
        )
        self.structure = self.lists
        self.rebuild()

    def default_uniform(self, k: int) -> int:
        """|T| = 5 |S|."""
        return UNIFORM * k

    def best_of_rows(
        self, hidden_BD: Tensor, targets_BM: Int64, random: Step
    ) -> tuple[Int64, Int32]:
        """See BestSoftmax."""
        return self.lists.look_up(self.lists.probed(hidden_BD, self.nprobe), targets_BM, random)

    def best_of_batch(self, hidden_BD: Tensor, targets_BM: Int64) -> Int32:
        """See BestSoftmax."""
        lists_BP = self.lists.probed(hidden_BD, self.nprobe)
        return self.lists.look_up_together(lists_BP, targets_BM, self.max_shared)
