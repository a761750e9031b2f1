from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from logitsieve.training import LNS, SampledSoftmax
from logitsieve.training.autograd.batch import RaggedCandidates
from logitsieve.training.proposals.lns import default_bits, default_tables
from tests.refusals import refused
from tests.training.loss_kit import assert_mean_of_one, doubles
from tests.training.loss_kit import proposed as drawn_by

V, D = 120, 10
FAMILIES: dict[str, dict[str, Any]] = {
    "simhash": {"hashing": "simhash", "hashes": 3, "tables": 3},
    "dwta": {"hashing": "dwta", "hashes": 2, "tables": 3, "window": 4},
}
EVERY_FAMILY = pytest.mark.parametrize("family", FAMILIES)
BOTH_QUERIES = pytest.mark.parametrize("query", ["label", "embedding"])
TARGET = torch.tensor([3, 0, 77, 3])
MANY: dict[str, Any] = {"classes": 1000, "n_uniform": 40, "cap": 40}


def make(
    family: str, *, classes: int = V, seed: int = 0, stale: bool = False, **options: Any
) -> SampledSoftmax:
    torch.manual_seed(3)
    common = {key: options.pop(key) for key in ("bias", "reduction") if key in options}
    proposal = LNS(**{**FAMILIES[family], **options})
    criterion = SampledSoftmax(D, classes, proposal, dtype=torch.float64, seed=seed, **common)
    criterion.classes.weight.data.mul_(1.5)
    if criterion.classes.bias is not None:
        criterion.classes.bias.data.copy_(doubles(classes, 1, seed=8, scale=0.3))
    criterion.rebuild()
    if stale:
        criterion.classes.weight.data += doubles(classes, D, seed=9, scale=0.2)
    return criterion


def proposed(
    criterion: SampledSoftmax, hidden_states: Tensor, target: Tensor
) -> list[tuple[list[int], list[float]]]:
    found = drawn_by(criterion, hidden_states, target)
    assert isinstance(found, RaggedCandidates)
    ids, weights = found.ids.tolist(), found.log_weights.tolist()
    return [(ids[a:b], weights[a:b]) for a, b in pairwise(found.offsets.tolist())]


def lns(criterion: SampledSoftmax) -> LNS:
    assert isinstance(criterion.proposal, LNS)
    return criterion.proposal


def colliding(criterion: SampledSoftmax, hidden_states: Tensor, target: Tensor) -> list[list[int]]:
    """By the codes alone: ids that share a bucket with the query, without the row's target."""
    codes = lns(criterion).hashed.codes
    if lns(criterion).query == "label":
        asked = codes[target.numpy()]
    else:
        bits = lns(criterion).hashed.hashing.bits
        asked = lns(criterion).hashed.of_contexts(hidden_states)[0] % (1 << bits)
    together = (asked[:, None] == codes[None]).any(-1)
    together[np.arange(len(target)), target.numpy()] = False
    return [np.flatnonzero(row).tolist() for row in together]


@pytest.mark.parametrize(
    ("family", "query", "options"),
    [
        ("simhash", "label", {"stale": True}),
        ("dwta", "embedding", {"cap": 4}),
        pytest.param("dwta", "label", {}, marks=pytest.mark.exhaustive),
        pytest.param("dwta", "embedding", MANY, marks=pytest.mark.exhaustive),
    ],
)
def test_the_estimate_of_Z_is_unbiased(family: str, query: str, options: dict[str, Any]) -> None:
    options = {"n_uniform": 5, "query": query, "reduction": "none", **options}
    drawn = (make(family, seed=seed, **options) for seed in range(300))
    assert_mean_of_one(drawn, doubles(4, D, seed=1), TARGET, 0.1)


@pytest.mark.parametrize(
    ("family", "query"),
    [pytest.param("simhash", "label", marks=pytest.mark.exhaustive), ("dwta", "embedding")],
)
def test_several_targets_leave_the_estimate_unbiased(family: str, query: str) -> None:
    """Whichever asks; uniform classes are drawn from those that are no targets, not from V - 1."""
    hidden_states, target = doubles(2, D, seed=1), torch.full((2, 60), -100)
    target[0], target[1, :2] = torch.arange(60), torch.tensor([50, 90])
    options: Any = {"query": query, "reduction": "none", "n_uniform": 20, "cap": 10}
    drawn = (make(family, seed=seed, **options) for seed in range(300))
    assert_mean_of_one(drawn, hidden_states, target, 0.05)


@EVERY_FAMILY
def test_weights_of_zeros_are_the_full_softmax(family: str) -> None:
    """As many start: all rows collide, in every table, and are counted once."""
    criterion = make(family, bias=False, cap=V, n_uniform=5, reduction="none")
    torch.nn.init.zeros_(criterion.classes.weight)
    criterion.rebuild()
    losses = criterion(doubles(4, D, seed=1), TARGET).detach()
    torch.testing.assert_close(losses, torch.full_like(losses, np.log(V)))


@EVERY_FAMILY
@BOTH_QUERIES
def test_as_published_it_is_a_softmax_of_what_collides(family: str, query: str) -> None:
    criterion = make(family, query=query, corrected=False, cap=V, reduction="none")
    hidden_states = doubles(4, D, seed=1)
    x = criterion.logits(hidden_states).detach()
    expected = []
    for row, ids in enumerate(colliding(criterion, hidden_states, TARGET)):
        assert ids
        chosen = [int(TARGET[row]), *ids]
        expected.append(x[row, chosen].logsumexp(0) - x[row, TARGET[row]])
    torch.testing.assert_close(criterion(hidden_states, TARGET).detach(), torch.stack(expected))
    assert lns(criterion).hashed.kept is None, "nothing has to be weighed"


@EVERY_FAMILY
@BOTH_QUERIES
def test_weights_are_those_of_the_formula(family: str, query: str) -> None:
    criterion = make(family, query=query, n_uniform=5, cap=V)
    hidden_states = doubles(4, D, seed=1)
    lists = colliding(criterion, hidden_states, TARGET)
    hashed = lns(criterion).hashed
    hashing, kept = hashed.hashing, hashed.kept
    assert kept is not None
    for row, (ids, weights) in enumerate(proposed(criterion, hidden_states, TARGET)):
        assert ids[:-5] == lists[row]
        assert len(set(ids[-5:])) == 5
        assert int(TARGET[row]) not in ids
        asking = kept[TARGET[row : row + 1].numpy()]
        if query == "embedding":
            asking = hashing.kept(hashed.of_contexts(hidden_states[row : row + 1])[1])
        p = hashing.agreements(asking, kept, np.array([0, len(ids)]), np.array(ids, np.int32))
        K, L = hashing.hashes, hashing.tables
        expected = 1 / (1 - (1 - p**K) ** L + 5 / (V - 1))
        np.testing.assert_allclose(np.exp(weights), expected, rtol=1e-9)


def test_a_capped_or_missing_collision_leaves_a_sample_that_stands_for_all() -> None:
    whole, capped = make("simhash", cap=V, n_uniform=5), make("simhash", cap=4, n_uniform=5)
    hidden_states = doubles(4, D, seed=1)
    for (ids, weights), (few, heavier) in zip(
        proposed(whole, hidden_states, TARGET), proposed(capped, hidden_states, TARGET), strict=True
    ):
        held = dict(zip(ids[:-5], weights, strict=False))
        assert len(held) > 4
        assert len(few) == 9
        for i, weight in zip(few[:4], heavier, strict=False):
            assert weight == pytest.approx(held[i] + np.log(len(held) / 4))
        assert heavier[4:] == pytest.approx(weights[-5:])
    criterion = make("simhash", corrected=False, hashes=14, tables=1, n_uniform=6)
    hidden_states = doubles(4, D, seed=1)
    lists = colliding(criterion, hidden_states, TARGET)
    assert [] in lists
    for row, (ids, weights) in enumerate(proposed(criterion, hidden_states, TARGET)):
        assert not any(weights)
        if lists[row]:
            assert ids == lists[row]
        else:
            assert len(set(ids)) == 6
            assert int(TARGET[row]) not in ids


def test_one_of_several_targets_asks() -> None:
    criterion = make("simhash", corrected=False, cap=V, n_uniform=1)
    several = torch.tensor([[3, 9, -100], [40, -100, -100]])
    hidden_states = doubles(2, D, seed=1)
    alone = [colliding(criterion, hidden_states, torch.tensor([t, 40]))[0] for t in (3, 9)]
    asked = set()
    for _ in range(20):
        (ids, _), (other, _) = proposed(criterion, hidden_states, several)
        assert not {3, 9} & set(ids)
        asked.add(next(i for i in (0, 1) if ids == [j for j in alone[i] if j not in (3, 9)]))
        assert other == colliding(criterion, hidden_states, torch.tensor([3, 40]))[1]
    assert asked == {0, 1}


@pytest.mark.parametrize(
    ("classes", "bits", "tables"),
    [(V, 9, 50), (12_800, 9, 50), (12_801, 10, 40), (200_000, 13, 20), (10**7, 16, 20)],
)
def test_a_bucket_holds_some_25_of_many_classes(classes: int, bits: int, tables: int) -> None:
    assert (default_bits(classes), default_tables(bits)) == (bits, tables)


def test_defaults_follow_the_classes_and_only_what_is_corrected_is_exported() -> None:
    for classes in (V, 30_000):
        hashing = lns(SampledSoftmax(2, classes, LNS())).hashed.hashing
        assert hashing.bits == default_bits(classes)
        assert hashing.tables == default_tables(hashing.bits)
    hashing = lns(SampledSoftmax(2, 30_000, LNS(hashes=4))).hashed.hashing
    assert (hashing.bits, hashing.tables) == (4, 50)
    assert SampledSoftmax(D, V, LNS()).export().weight.shape == (V, D)
    with refused("export", r"what collides.*cannot be served"):
        SampledSoftmax(D, V, LNS(corrected=False)).export()
