from types import NoneType

import pytest
import torch

from logitsieve.api.errors import InvalidRequest
from logitsieve.training import LOSSES
from logitsieve.training.losses.registry import read_options
from tests.refusals import refused


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_is_made_of_a_vocabulary_alone(name: str) -> None:
    criterion = LOSSES[name](8, 60, class_counts=torch.arange(60, 0, -1), seed=3)
    assert type(criterion) is LOSSES[name].kind
    assert (criterion.in_features, criterion.n_classes) == (8, 60)


@pytest.mark.parametrize("name", LOSSES)
def test_the_trainer_decides_what_is_its_own(name: str) -> None:
    decided = {"seed", "device", "in_features", "n_classes", "class_counts", "weights", "sparse"}
    assert not decided & set(LOSSES[name].options)


def test_options_are_read_as_their_loss_takes_them() -> None:
    assert LOSSES["uniform"].options["n_sampled"] == ((int,), 100)
    assert LOSSES["rf"].options["scale"] == ((float, NoneType), 1 / 0.3**2)
    assert LOSSES["lns"].options["query"] == (("label", "embedding"), "label")
    assert "bias" not in LOSSES["quadratic"].options
    read = read_options("uniform", ["n_sampled=7", "per_row = True", "bias=false", "scale=3"])
    assert read == {"n_sampled": 7, "per_row": True, "bias": False, "scale": 3.0}
    assert isinstance(read["scale"], float)
    assert read_options("uniform", ["scale=none"]) == {"scale": None}
    assert read_options("d-softmax", ["blocks=[[1, 2], [3, 4]]"]) == {"blocks": [[1, 2], [3, 4]]}
    with pytest.raises(InvalidRequest, match="uniform"):
        read_options("magic", ())


@pytest.mark.parametrize(
    ("pair", "reason"),
    [
        ("n_sampled", "NAME=VALUE, for uniform: "),
        ("m=3", "n_sampled \\(int\\)"),
        ("seed=3", "for uniform"),
        ("n_sampled=many", "allowed: int"),
        ("n_sampled=1.5", "allowed: int"),
        ("per_row=1", "allowed: bool"),
        ("scale=true", "allowed: float or none"),
    ],
)
def test_other_options_are_refused(pair: str, reason: str) -> None:
    with refused("loss_option", reason):
        read_options("uniform", [pair])
