"""Seeds, targets and hypotheses may be tensors; what is wrong with them is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from logitsieve.api.errors import InvalidRequest
from tests.gpu.replies import (
    HIDDEN,
    SEEDS,
    TARGETS,
    Pair,
    assert_same,
    bits,
    there,
)


@pytest.mark.parametrize("wrong", [there(TARGETS[:3]), there(TARGETS) * 1.0, there(TARGETS[:, :0])])
def test_wrong_targets_are_refused(pair: Pair, wrong: torch.Tensor) -> None:
    with pytest.raises(InvalidRequest, match="targets"):
        pair[0].score(there(), wrong)


def test_seeds_may_be_of_either_place(pair: Pair) -> None:
    asked: Any = {"top_k": 9, "head": "exact"}
    many, one = (pair[1].sample(HIDDEN, 20, seeds=seeds, **asked) for seeds in (SEEDS, 7))
    for seeds in (SEEDS, bits(SEEDS).view(torch.uint64)):
        assert_same(pair[0].sample(there(), 20, seeds=seeds, **asked), many)
    for seed in (7, torch.tensor(7), torch.tensor([7], dtype=torch.uint64)):
        assert_same(pair[0].sample(there(), 20, seeds=seed, **asked), one)


@pytest.mark.parametrize("wrong", [bits(SEEDS)[:2], bits(SEEDS) * 1.0])
def test_wrong_seeds_are_refused(pair: Pair, wrong: torch.Tensor) -> None:
    with pytest.raises(InvalidRequest, match="seeds"):
        pair[0].sample(there(), seeds=wrong, head="exact")


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("scores", torch.zeros(3)),
        ("scores", torch.zeros(4, dtype=torch.bool)),
        ("lengths", torch.zeros(4)),
        ("finished", torch.zeros(4, dtype=torch.int32)),
    ],
)
def test_wrong_hypotheses_are_refused(pair: Pair, field: str, values: torch.Tensor) -> None:
    vectors: Any = {field: there(values.numpy())}
    with pytest.raises(InvalidRequest, match=field):
        pair[0].beam_step(there(), beams_in=2, beams_out=2, eos_ids=[1], **vectors)


def test_what_may_have_finished_needs_an_end(pair: Pair) -> None:
    with pytest.raises(InvalidRequest, match="eos_ids"):
        pair[0].beam_step(there(), finished=there(np.zeros(4, bool)), beams_in=2, beams_out=2)
