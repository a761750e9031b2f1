"""torch's int8 products: the dynamic quantised linear layer, and `_weight_int8pack_mm`.

The first is what `quantize_dynamic` makes of a Linear: int8 rows with a scale a word, a batch's
activations in 7 bits. The second keeps activations in bfloat16 and only W in int8; with float32
activations it is a scalar loop, ten times slower than the float32 product.
"""

import warnings

import numpy as np
import torch

from benchmarks.race.methods import Method
from benchmarks.race.points import QUANTISED
from logitsieve.api.results import Float32
from logitsieve.heads import Softmax

NARROWED = True  # activations to 7 bits, as in that Linear: sums of pairs fit in int16
VECTOR = 16  # columns of `_weight_int8pack_mm`


def scales_of(weight: torch.Tensor) -> torch.Tensor:
    """float32 [V]: a row's largest magnitude is code 127."""
    return weight.abs().amax(dim=1).clamp(min=1e-30) / 127


class TorchDynamic(Method):
    """`torch.ops.quantized.linear_dynamic`, which torch.ao.nn.quantized.dynamic.Linear calls."""

    name = "torch dynamic int8"
    kind = QUANTISED

    def __init__(self, softmax: Softmax) -> None:
        weight, bias = torch.from_numpy(softmax.weight), torch.from_numpy(softmax.bias)
        scales, zeros = scales_of(weight), torch.zeros(len(weight), dtype=torch.int64)
        with warnings.catch_warnings(action="ignore", category=UserWarning):  # to be removed
            codes = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
        self._packed = torch.ops.quantized.linear_prepack(codes, bias)
        self.nbytes = codes.numel() + 4 * len(weight)

    def topk(self, hidden_states: Float32, k: int) -> np.ndarray:
        with torch.inference_mode():
            rows = torch.from_numpy(hidden_states)
            logits = torch.ops.quantized.linear_dynamic(rows, self._packed, NARROWED)
            return torch.topk(logits, k)[1].numpy()


class TorchWeightOnly(Method):
    """`torch._weight_int8pack_mm` and the bias, in bfloat16.

    W is padded to whole vectors: the product reads beyond rows that are none.
    """

    name = "torch weight-only int8"
    kind = QUANTISED

    def __init__(self, softmax: Softmax) -> None:
        weight = torch.from_numpy(softmax.weight)
        scales = scales_of(weight)
        codes = (weight / scales[:, None]).round().to(torch.int8)
        self._padding = (0, -softmax.dim % VECTOR)
        self._codes = torch.nn.functional.pad(codes, self._padding)
        self._scales, self._bias = scales.bfloat16(), torch.from_numpy(softmax.bias).bfloat16()
        self.nbytes = sum(x.nbytes for x in (self._codes, self._scales, self._bias))

    def topk(self, hidden_states: Float32, k: int) -> np.ndarray:
        with torch.inference_mode():
            rows = torch.nn.functional.pad(
                torch.from_numpy(hidden_states).bfloat16(), self._padding
            )
            logits = torch._weight_int8pack_mm(rows, self._codes, self._scales)
            return torch.topk(logits.add_(self._bias), k)[1].numpy()
