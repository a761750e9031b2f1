"""PyTorch losses over a huge softmax that cost less than the softmax."""

from __future__ import annotations

from logitsieve.utils.environment import require

require("training", "torch", "numba")

from logitsieve.training.autograd.clip import clip_grad_norm_  # noqa: E402
from logitsieve.training.losses.chunked import ChunkedSoftmax  # noqa: E402
from logitsieve.training.losses.d_softmax import DSoftmax  # noqa: E402
from logitsieve.training.losses.exp import ExpSoftmax  # noqa: E402
from logitsieve.training.losses.full import FullSoftmax  # noqa: E402
from logitsieve.training.losses.importance import ImportanceSoftmax  # noqa: E402
from logitsieve.training.losses.kmeans import KMeansSoftmax  # noqa: E402
from logitsieve.training.losses.lns import LNSSoftmax  # noqa: E402
from logitsieve.training.losses.log_uniform import LogUniformSoftmax  # noqa: E402
from logitsieve.training.losses.loss import Export, SoftmaxLoss  # noqa: E402
from logitsieve.training.losses.lsh import LSHSoftmax  # noqa: E402
from logitsieve.training.losses.nce import NCE  # noqa: E402
from logitsieve.training.losses.quadratic import QuadraticSoftmax  # noqa: E402
from logitsieve.training.losses.rf import RFSoftmax  # noqa: E402
from logitsieve.training.losses.sampled import SampledSoftmax  # noqa: E402
from logitsieve.training.losses.topk import TopKSoftmax  # noqa: E402
from logitsieve.training.losses.uniform import UniformSoftmax  # noqa: E402
from logitsieve.training.losses.unigram import UnigramSoftmax  # noqa: E402

# By the name that `logitsieve train --loss` takes. Contract tests run over all of them.
LOSSES: dict[str, type[SoftmaxLoss]] = {
    "full": FullSoftmax,
    "chunked": ChunkedSoftmax,
    "uniform": UniformSoftmax,
    "log-uniform": LogUniformSoftmax,
    "unigram": UnigramSoftmax,
    "importance": ImportanceSoftmax,
    "exp": ExpSoftmax,
    "nce": NCE,
    "d-softmax": DSoftmax,
    "rf": RFSoftmax,
    "quadratic": QuadraticSoftmax,
    "lsh": LSHSoftmax,
    "lns": LNSSoftmax,
    "kmeans": KMeansSoftmax,
    "top-k": TopKSoftmax,
}

__all__ = [
    "LOSSES",
    "NCE",
    "ChunkedSoftmax",
    "DSoftmax",
    "ExpSoftmax",
    "Export",
    "FullSoftmax",
    "ImportanceSoftmax",
    "KMeansSoftmax",
    "LNSSoftmax",
    "LSHSoftmax",
    "LogUniformSoftmax",
    "QuadraticSoftmax",
    "RFSoftmax",
    "SampledSoftmax",
    "SoftmaxLoss",
    "TopKSoftmax",
    "UniformSoftmax",
    "UnigramSoftmax",
    "clip_grad_norm_",
]
