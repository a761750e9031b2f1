"""W and its bias on a device, with float32 logits to choose and exact float64 logits to decide.

A float32 dot of D products, added in any order, is off by at most gamma_D ||w|| ||h||, with
gamma_n = n u / (1 - n u) and u = 2^-24 (Higham, Accuracy and Stability of Numerical Algorithms, 2nd
ed., section 3.1). `slack` takes gamma_{D+1}, which leaves u for the float64 rounding of an exact
logit, plus the loss of subnormal numbers, which a GPU may flush to 0. Adding the bias keeps order.

Exact logits are float64 sums in the order of kernels/simd/dots.py, then the bias. Products of two
float32 are exact in float64, so neither fused multiply-add nor the device changes a bit.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor
from triton import cdiv

from logitsieve.gpu.device import computing, require_true_float32, to_device
from logitsieve.gpu.kernels import exact_logits_kernel
from logitsieve.heads._base.head import Softmax
from logitsieve.kernels.rows.functions import decoded
from logitsieve.kernels.topk.descriptor import LARGEST_BIAS, LARGEST_LOGIT, LARGEST_NORM, UNIT32
from logitsieve.utils.stored import KINDS, StoredMatrix

LANES = 16
BLOCK = 32  # ids per program


def exact_logits(weight: Tensor, bias: Tensor, hidden_states: Tensor, ids: Tensor) -> Tensor:
    """Return float64 [B, M] logits of int32 ids [B, M] (-inf for -1) for hidden_states [B, D]."""
    if hidden_states.is_cuda:
        return launch_exact_logits(weight, bias, hidden_states, ids)
    known, rows = ids >= 0, ids.clamp(min=0).long()
    sums = torch.zeros((*ids.shape, LANES), dtype=torch.float64)
    for start in range(0, hidden_states.shape[1], LANES):
        values = weight[:, start : start + LANES][rows].double()
        sums[..., : values.shape[2]] += (
            values * hidden_states[:, None, start : start + LANES].double()
        )
    while sums.shape[2] > 1:
        sums = sums[..., 0::2] + sums[..., 1::2]
    return torch.where(known, sums[..., 0] + bias.double()[rows], -torch.inf)


def launch_exact_logits(weight: Tensor, bias: Tensor, hidden_states: Tensor, ids: Tensor) -> Tensor:
    rows, count = ids.shape
    if weight.dtype == torch.bfloat16:
        weight = weight.view(torch.int16)  # Triton's interpreter cannot compute in bfloat16
    logits = torch.empty((rows, count), dtype=torch.float64, device=hidden_states.device)
    exact_logits_kernel[(rows * cdiv(count, BLOCK),)](
        weight, bias, hidden_states.contiguous(), ids, logits,
        hidden_states.shape[1], count, ids.stride(0), ids.stride(1), LANES=LANES, BLOCK=BLOCK,
    )  # fmt: skip
    return logits


UNDERFLOW = 2.0**-125  # the loss if a product and an addition are flushed to 0
NORM_SPARE = 1 + 2.0**-40  # covers rounding of ||h||
ROWS_WIDENED = 1 << 14  # rows of a half type converted at once
LOGITS_AT_ONCE = 1 << 25  # 256 MiB of float64


class DeviceMatrix:
    """W [V, D] and its bias [V] on one device; rows in blocks become float32. Thread-safe."""

    def __init__(self, softmax: Softmax, device: torch.device) -> None:
        self.device, self.vocab_size, self.dim = device, softmax.vocab_size, softmax.dim
        norms = softmax.descriptor[[LARGEST_NORM, LARGEST_BIAS]].view(np.float64).tolist()
        self.largest_norm: float = norms[0]  # at least ||w|| of every row
        self.largest_bias: float = norms[1]
        with computing(device):
            self.weight = _weight_on(device, softmax.matrix)
            self.bias = to_device(softmax.bias, device)
            self.ids = torch.arange(self.vocab_size, dtype=torch.int32, device=device)

    def slices(self, rows: int, columns: int = 0) -> Iterator[slice]:
        step = max(1, LOGITS_AT_ONCE // max(self.vocab_size, columns))
        for start in range(0, rows, step):
            yield slice(start, min(start + step, rows))

    def admissible(self, hidden_states: Tensor) -> Tensor:
        """Tell which rows [B] are finite and too small to overflow any float32 logit."""
        most = _norms(hidden_states) * self.largest_norm + self.largest_bias
        return most <= LARGEST_LOGIT

    def scores(self, hidden_states: Tensor) -> Tensor:
        """Return float32 logits [B, V] of hidden_states [B, D]: dots within `slack`, plus bias."""
        require_true_float32(self.device)
        if self.weight.dtype == torch.float32:
            return torch.matmul(hidden_states, self.weight.T).add_(self.bias)
        scores = hidden_states.new_empty(len(hidden_states), self.vocab_size)
        for start in range(0, self.vocab_size, ROWS_WIDENED):
            part = slice(start, start + ROWS_WIDENED)
            scores[:, part] = torch.matmul(hidden_states, self.weight[part].float().T)
        return scores.add_(self.bias)

    def slack(self, hidden_states: Tensor) -> Tensor:
        """Return float64 [B], bounds of the errors of float32 dots with each row."""
        count = self.dim + 1
        gamma = count * UNIT32 / (1 - count * UNIT32)
        return gamma * self.largest_norm * _norms(hidden_states) + count * UNDERFLOW

    def logits64(self, hidden_states: Tensor, ids: Tensor | None = None) -> Tensor:
        """Return exact float64 logits of int32 ids [B, M] (-inf for a negative id), or of all V."""
        if ids is None:
            ids = self.ids.expand(len(hidden_states), -1)
        return exact_logits(self.weight, self.bias, hidden_states, ids)


def _norms(hidden_states: Tensor) -> Tensor:
    """Return upper bounds of ||h||, float64 [B]; NaN or infinity if h is not finite."""
    norms: Tensor = torch.linalg.vector_norm(hidden_states, dim=1, dtype=torch.float64)
    return norms * NORM_SPARE


def _weight_on(device: torch.device, matrix: StoredMatrix) -> Tensor:
    if not KINDS[matrix.kind].blocks:
        if matrix.kind == "BF16":
            return to_device(matrix.data.view(np.int16), device).view(torch.bfloat16)
        return to_device(matrix.data, device)
    weight = torch.empty(matrix.shape, device=device)
    for start in range(0, matrix.vocab_size, ROWS_WIDENED):
        rows = slice(start, start + ROWS_WIDENED)
        weight[rows] = to_device(decoded(matrix[rows]), device)
    return weight
