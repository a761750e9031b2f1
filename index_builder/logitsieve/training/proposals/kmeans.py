"""k-means softmax: the classes in a context's best clusters, and a uniform sample.

Igbinedion, Phillips, Levy, Fast Softmax Sampling for Deep Neural Networks, with its formulas
corrected (benchmarks/papers/losses.md). Auvolat et al. 2015, section 3: if rows [w; b] / M are
extended to norm 1, the largest logit has the smallest angle.

Shape letters: E = D + 2, C clusters.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from logitsieve.api.checks import whole
from logitsieve.api.errors import InvalidRequest
from logitsieve.api.results import Int32, Int64
from logitsieve.heads._base.head import Softmax
from logitsieve.index_builder.reduction import augmented
from logitsieve.training.autograd.batch import StepRng
from logitsieve.training.autograd.classes import ClassWeights
from logitsieve.training.proposals.proposal import Csr, SearchProposal, sqrt_classes
from logitsieve.training.structures.tables import Buckets
from logitsieve.utils.options import option

KMEANS_ITERATIONS = 10  # enough, as clusters last for some steps only
POINTS = 256
UNIFORM = 5


class InvertedLists(Buckets):
    """A RowIndex by clusters. As in the paper, an update clusters all rows again."""

    def __init__(self, n_classes: int, n_lists: int, seed: int, *, normalized: bool) -> None:
        super().__init__(n_classes)
        self.n_lists, self.seed, self.normalized = n_lists, seed, normalized
        self.arrays: dict[str, np.ndarray] = {}

    def rebuild(self, weight: Tensor, bias: Tensor | None) -> None:
        rows = weight.detach().to("cpu", torch.float32)
        if self.normalized:
            rows = torch.nn.functional.normalize(rows, dim=-1)
        biases = torch.zeros(len(rows)) if bias is None else bias.detach().view(-1)
        softmax = Softmax(
            np.ascontiguousarray(rows.numpy()),
            np.ascontiguousarray(biases.to("cpu", torch.float32).numpy()),
        )
        self._hold(cluster_arrays(softmax, self.n_lists, self.seed))

    def update(self, rows: Tensor, weight: Tensor, bias: Tensor | None) -> None:
        self.rebuild(weight, bias)

    def probed(self, hidden_BD: Tensor, nprobe: int) -> Int32:
        hidden_states = hidden_BD.detach().to("cpu", torch.float32)
        centroids = torch.from_numpy(self.arrays["centroids"])
        scores_BC = hidden_states @ centroids.T + torch.from_numpy(self.arrays["biases"])
        best = scores_BC.topk(min(nprobe, scores_BC.shape[1]), dim=1, sorted=False).indices
        return np.ascontiguousarray(best.numpy(), np.int32)

    def state_dict(self) -> dict[str, Any]:
        arrays = {name: torch.from_numpy(array) for name, array in self.arrays.items()}
        return {"seed": self.seed, **arrays}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        arrays = {n: each.cpu().numpy() for n, each in state.items() if isinstance(each, Tensor)}
        if arrays["ids"].size != self.n_classes:
            allowed = f"lists of {self.n_classes} classes"
            raise InvalidRequest("state_dict", f"lists of {arrays['ids'].size}", allowed)
        self.seed = state["seed"]
        self._hold(arrays)

    def _hold(self, arrays: dict[str, np.ndarray]) -> None:
        self.arrays, self.offsets, self.ids = arrays, arrays["offsets"], arrays["ids"]


def cluster_arrays(softmax: Softmax, clusters: int, seed: int) -> dict[str, np.ndarray]:
    """Return `centroids` [C, D], `biases` [C], and `offsets` and `ids` of lists, none empty."""
    import faiss

    rows_VE = augmented(softmax)
    clusters = min(clusters, len(rows_VE))
    kmeans = faiss.Kmeans(
        rows_VE.shape[1],
        clusters,
        niter=KMEANS_ITERATIONS,
        spherical=True,
        seed=seed,
        min_points_per_centroid=1,
        max_points_per_centroid=POINTS,
    )
    kmeans.train(rows_VE)
    cluster_V = kmeans.index.search(rows_VE, 1)[1][:, 0]
    sizes_C = np.bincount(cluster_V, minlength=clusters)
    used = sizes_C > 0
    centroids = np.asarray(kmeans.centroids, np.float32)[used]
    return {
        "centroids": np.ascontiguousarray(centroids[:, : softmax.dim]),
        "biases": np.ascontiguousarray(centroids[:, softmax.dim]),
        "offsets": np.concatenate([[0], np.cumsum(sizes_C[used])]).astype(np.int32),
        "ids": np.argsort(cluster_V, kind="stable").astype(np.int32),
    }


@dataclass(kw_only=True, eq=False)
class KMeans(SearchProposal):
    """S has the `nprobe` best clusters, with k classes on average. n_uniform is 5 k by default."""

    n_lists: int | None = option(None, "Clusters; none: 4 sqrt V.", 1)
    nprobe: int | None = option(None, "Clusters of a row; none: enough for k classes.", 1)

    def start(self, classes: ClassWeights, seed: int) -> None:
        super().start(classes, seed)
        count = self.n_classes
        n_lists = sqrt_classes(count, 4) if self.n_lists is None else self.n_lists
        whole("n_lists", n_lists, 1, count)
        probes = self.nprobe
        self.probes = max(1, round(self.sizes.k * n_lists / count)) if probes is None else probes
        whole("nprobe", self.probes, 1, n_lists)
        self.index = self.lists = InvertedLists(
            count, n_lists, seed, normalized=classes.form.scale is not None
        )

    def default_n_uniform(self, k: int) -> int:
        return UNIFORM * k

    def search_rows(self, hidden_BD: Tensor, targets_BM: Int64, rng: StepRng) -> Csr:
        lists_BP = self.lists.probed(hidden_BD, self.probes)
        offsets, ids, _ = self.lists.look_up(lists_BP, targets_BM, self.n_classes, rng)
        return offsets, ids

    def search_batch(self, hidden_BD: Tensor, targets_BM: Int64) -> Int32:
        lists_BP = self.lists.probed(hidden_BD, self.probes)
        return self.lists.look_up_batch(lists_BP, targets_BM, self.sizes.max_shared)
