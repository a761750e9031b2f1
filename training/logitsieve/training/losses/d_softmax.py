"""D-softmax: frequent classes see more of the hidden row than rare ones.

Chen, Grangier, Auli 2016, Strategies for Training Large Vocabulary Neural Language Models, section
2.2: the hidden row is cut into parts, the classes into blocks by frequency, and the logits of a
block are the product of its weights with its own part.
Shape letters: B rows, D hidden size, V classes; a block has n classes and d dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import torch
from torch import Tensor

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.autograd.batch import check_at_least
from logitsieve.training.autograd.classes import BlockWeights
from logitsieve.training.losses.frequency import by_frequency
from logitsieve.training.losses.full import FullSoftmax
from logitsieve.training.losses.loss import LossOptions


class DSoftmax(FullSoftmax):
    """Full softmax over blocks of classes: sum of n d products a row instead of V D.

    blocks: (n, d) of each, most frequent classes first, all of V and D together. By default a tenth
    of the classes has half of the dimensions, the next three tenths a quarter and the rest the
    rest. class_counts [V] are frequencies; without them lower ids are the more frequent ones.
    """

    def __init__(
        self,
        in_features: int,
        n_classes: int,
        class_counts: Tensor | None = None,
        *,
        blocks: Sequence[tuple[int, int]] | None = None,
        **common: Unpack[LossOptions],
    ) -> None:
        check_at_least("in_features", in_features, 3)
        check_at_least("n_classes", n_classes, 3)
        blocks = _default_blocks(n_classes, in_features) if blocks is None else blocks
        _check_blocks(blocks, n_classes, in_features)
        order = torch.arange(n_classes)
        if class_counts is not None:
            order = by_frequency(class_counts, n_classes)
        classes = BlockWeights(
            blocks,
            order,
            bias=common.get("bias", True) and common.get("scale") is None,
            device=common.get("device"),
            dtype=common.get("dtype"),
        )
        super().__init__(in_features, n_classes, classes=classes, **common)
        self.blocks = classes

    def full_logits(self, prepared: Tensor) -> Tensor:
        x = self.blocks.logits(prepared, self.logit_form.scale is not None)
        return x.abs() if self.logit_form.absolute else x


def _default_blocks(n_classes: int, in_features: int) -> list[tuple[int, int]]:
    head, middle = max(n_classes // 10, 1), max(3 * n_classes // 10, 1)
    wide, half = max(in_features // 2, 1), max(in_features // 4, 1)
    rest = (n_classes - head - middle, in_features - wide - half)
    return [(head, wide), (middle, half), rest]


def _check_blocks(blocks: Sequence[tuple[int, int]], n_classes: int, in_features: int) -> None:
    pairs = all(isinstance(block, Sequence) and len(block) == 2 for block in blocks)
    whole = pairs and all(type(size) is int and size > 0 for block in blocks for size in block)
    if not whole or tuple(map(sum, zip(*blocks, strict=True))) != (n_classes, in_features):
        allowed = f"(classes, dimensions) of blocks that add up to {(n_classes, in_features)}"
        raise InvalidRequest("blocks", list(blocks), allowed)
