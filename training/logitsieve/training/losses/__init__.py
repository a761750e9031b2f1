"""Losses over a large softmax, one file each, and the list of them."""
# ruff: noqa: E402  # the extra is checked before torch is imported

from __future__ import annotations

from logitsieve.utils.environment import require

require("training", "torch", "numba")

from logitsieve.training.autograd.classes import clip_grad_norm_
from logitsieve.training.losses.frequency import (
    NCE,
    ImportanceSoftmax,
    LogUniformSoftmax,
    UniformSoftmax,
    UnigramSoftmax,
)
from logitsieve.training.losses.full import ChunkedSoftmax, DSoftmax, FullSoftmax
from logitsieve.training.losses.kernel_softmax import QuadraticSoftmax, RFSoftmax
from logitsieve.training.losses.kmeans import KMeansSoftmax
from logitsieve.training.losses.lns import LNSSoftmax
from logitsieve.training.losses.loss import Export, SoftmaxLoss
from logitsieve.training.losses.sampled import ExpSoftmax, SampledSoftmax
from logitsieve.training.losses.search_softmax import LSHSoftmax, TopKSoftmax

# By the name that `logitsieve train --loss` takes. tests/training/test_registry.py names what each
# loss needs besides: documentation and tests.
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
    "LOSSES", "NCE", "ChunkedSoftmax", "DSoftmax", "ExpSoftmax", "Export", "FullSoftmax",
    "ImportanceSoftmax", "KMeansSoftmax", "LNSSoftmax", "LSHSoftmax", "LogUniformSoftmax",
    "QuadraticSoftmax", "RFSoftmax", "SampledSoftmax", "SoftmaxLoss", "TopKSoftmax",
    "UniformSoftmax", "UnigramSoftmax", "clip_grad_norm_",
]  # fmt: skip
