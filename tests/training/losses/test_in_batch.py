from typing import Any

import pytest
import torch

from logitsieve.training import LOSSES, SampledSoftmax
from logitsieve.training.autograd.batch import RaggedCandidates, SharedCandidates, with_targets
from logitsieve.training.losses.registry import read_options
from tests.training.loss_kit import assert_mean_of_one, assert_unbiased, doubles, make

TARGET = torch.tensor([3, 0, 59, 3, 17])
IN_BATCH: dict[str, Any] = {"in_batch": True, "reduction": "none", "dtype": torch.float64}
PROPOSALS: dict[str, dict[str, Any]] = {
    "uniform": {"n_sampled": 40},
    "log-uniform": {"n_sampled": 40},
    "unigram": {"n_sampled": 40, "per_row": True},
    "rf": {"n_sampled": 40, "scale": 2.0, "n_features": 64},
    "lsh": {"k": 10, "n_uniform": 20, "tables": 4, "bits": 3, "per_row": True},
}


def test_every_target_is_there_once_and_what_was_drawn_of_them_goes() -> None:
    weights = torch.tensor([0.5, 1.5, 2.5, 3.5])
    shared = with_targets(SharedCandidates(torch.tensor([7, 3, 7, 8]), weights), TARGET)
    assert shared.ids.tolist() == [0, 3, 17, 59, 7, 7, 8]
    assert shared.log_weights.tolist() == [0, 0, 0, 0, 0.5, 2.5, 3.5]
    offsets = torch.tensor([0, 3, 3, 4])
    drawn = RaggedCandidates(offsets, torch.tensor([7, 3, 59, 8]), weights)
    ragged = with_targets(drawn, torch.tensor([3, 3, 8]))
    assert isinstance(ragged, RaggedCandidates)
    assert ragged.offsets.tolist() == [0, 4, 6, 8]
    assert ragged.ids.tolist() == [3, 8, 7, 59, 3, 8, 3, 8]
    assert ragged.log_weights.tolist() == [0, 0, 0.5, 2.5, 0, 0, 0, 0]


@pytest.mark.parametrize("name", PROPOSALS)
def test_the_loss_stays_unbiased(name: str) -> None:
    criterion = make(name, 8, 60, **IN_BATCH, **PROPOSALS[name])
    assert_unbiased(criterion, doubles(5, 8, scale=0.5), TARGET)


def test_lns_stays_unbiased_over_the_draw_of_its_tables() -> None:
    options: Any = {"hashes": 2, "tables": 4, "n_uniform": 20, **IN_BATCH}
    drawn = (make("lns", 8, 60, seed=seed, **options) for seed in range(300))
    assert_mean_of_one(drawn, doubles(5, 8, scale=0.5), TARGET, 0.05)


def test_the_shared_set_of_a_search_has_them_already() -> None:
    asked = doubles(20, 8).float(), torch.arange(20)
    without, within = (make("lsh", 8, 60, in_batch=each)(*asked) for each in (False, True))
    torch.testing.assert_close(without, within)


def test_text_sets_it() -> None:
    for name in ("uniform", "log-uniform", "rf", "lns"):
        criterion = LOSSES[name](8, 60, **read_options(name, ["in_batch=true"]))
        assert isinstance(criterion, SampledSoftmax)
        assert criterion.in_batch
