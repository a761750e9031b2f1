"""PyTorch losses over a huge softmax that cost less than the softmax."""

from __future__ import annotations

from logitsieve.types.extras import require

require("training", "torch", "numba")

from logitsieve.training.clip import clip_grad_norm_  # noqa: E402
from logitsieve.training.log_uniform import LogUniformSoftmax  # noqa: E402
from logitsieve.training.loss import Export, SoftmaxLoss  # noqa: E402
from logitsieve.training.quadratic import QuadraticSoftmax  # noqa: E402
from logitsieve.training.rf import RFSoftmax  # noqa: E402
from logitsieve.training.sampled import SampledSoftmax  # noqa: E402
from logitsieve.training.uniform import UniformSoftmax  # noqa: E402
from logitsieve.training.unigram import UnigramSoftmax  # noqa: E402

# By the name that `logitsieve train --loss` takes. Contract tests run over all of them.
LOSSES: dict[str, type[SoftmaxLoss]] = {
    "uniform": UniformSoftmax,
    "log-uniform": LogUniformSoftmax,
    "unigram": UnigramSoftmax,
    "rf": RFSoftmax,
    "quadratic": QuadraticSoftmax,
}

__all__ = ["LOSSES", "Export", "SampledSoftmax", "SoftmaxLoss", "clip_grad_norm_"]
