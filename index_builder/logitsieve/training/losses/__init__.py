"""Losses over a large softmax, and the list of them."""
# ruff: noqa: E402  # `require` comes before torch is imported

from logitsieve.utils.environment import require

require("training", "torch", "numba", "threadpoolctl")

from logitsieve.training.autograd.classes import clip_grad_norm_
from logitsieve.training.losses.baselines import (
    NCE,
    DSoftmax,
    Exp,
    ImportanceSoftmax,
    Quadratic,
    TopK,
)
from logitsieve.training.losses.loss import ChunkedSoftmax, Export, FullSoftmax, SoftmaxLoss
from logitsieve.training.losses.registry import LOSSES, Loss
from logitsieve.training.losses.sampled import SampledSoftmax
from logitsieve.training.proposals.frequency import FrequencyProposal
from logitsieve.training.proposals.kernel import RandomFeatures
from logitsieve.training.proposals.kmeans import KMeans
from logitsieve.training.proposals.lns import LNS
from logitsieve.training.proposals.lsh import LSH
from logitsieve.training.proposals.proposal import Proposal

__all__ = [
    "LNS", "LOSSES", "LSH", "NCE", "ChunkedSoftmax", "DSoftmax", "Exp", "Export",
    "FrequencyProposal", "FullSoftmax", "ImportanceSoftmax", "KMeans", "Loss", "Proposal",
    "Quadratic", "RandomFeatures", "SampledSoftmax", "SoftmaxLoss", "TopK", "clip_grad_norm_",
]  # fmt: skip
