import copy
from typing import Any

import numpy as np
import pytest
import torch

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.autograd.batch import StepRng
from logitsieve.training.structures.hashing import DWTA, SimHash, StructuredSimHash
from logitsieve.training.structures.tables import HashTables

V, D = 150, 12


def make_rows(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(V, D, generator=generator), torch.randn(V, 1, generator=generator)


def make_tables(*, mips: bool = False, keep: bool = False, tables: int = 5) -> HashTables:
    return HashTables(V, SimHash(D, tables=tables, bits=4, seed=3), mips=mips, keep=keep)


def everything(tables: HashTables, hidden_states: torch.Tensor) -> list[list[int]]:
    buckets, _ = tables.of_contexts(hidden_states)
    none = np.full((len(hidden_states), 1), -1)
    offsets, ids, _ = tables.look_up(buckets, none, V, StepRng(0, 0))
    return [part.tolist() for part in np.split(ids, offsets[1:-1])]


@pytest.mark.parametrize("mips", [False, True])
def test_a_thousand_updates_find_what_new_tables_find(mips: bool) -> None:
    weight, bias = make_rows()
    tables = make_tables(mips=mips, keep=True)
    tables.rebuild(weight, bias)
    generator = torch.Generator().manual_seed(1)
    for _ in range(1000):
        rows = torch.randperm(V, generator=generator)[:7].sort().values
        weight[rows] += 0.1 * torch.randn(7, D, generator=generator)
        tables.update(rows, weight, bias)
    other = make_tables(mips=mips, keep=True)
    other.rebuild(weight, bias)
    if mips:
        other.largest = tables.largest  # a new one would have less headroom
        other.update(torch.arange(V), weight, bias)
    hidden_states = torch.randn(20, D, generator=generator)
    assert everything(tables, hidden_states) == everything(other, hidden_states)
    np.testing.assert_equal((tables.codes, tables.kept), (other.codes, other.kept))


def test_a_row_is_found_where_it_was_hashed_until_it_is_updated() -> None:
    weight, bias = make_rows()
    tables = make_tables()
    tables.rebuild(weight, bias)
    hidden_states = torch.cat([weight[7:8] * 3, -weight[7:8] * 3])
    assert 7 in everything(tables, hidden_states)[0]
    weight[7], bias[7] = -weight[7], -bias[7]
    assert 7 in everything(tables, hidden_states)[0]
    tables.update(torch.tensor([7]), weight, bias)
    assert [7 in ids for ids in everything(tables, hidden_states)] == [False, True]


@pytest.mark.parametrize("limit", [V, 20, 1])
def test_a_batch_finds_the_ids_with_most_votes(limit: int) -> None:
    tables = make_tables()
    tables.rebuild(*make_rows())
    hidden_states = torch.randn(30, D, generator=torch.Generator().manual_seed(1))
    buckets, _ = tables.of_contexts(hidden_states)
    targets = np.full((30, 2), -1)
    targets[:, 0], targets[5, 1] = 11, 17
    codes = buckets % (1 << tables.hashing.bits)
    votes = (codes[:, None] == tables.codes).sum((0, 2))
    votes[[11, 17]] = 0
    best = np.argsort(-votes, kind="stable")[: min(limit, (votes > 0).sum())]
    assert tables.look_up_batch(buckets, targets, limit).tolist() == sorted(best.tolist())


def test_angles_ignore_lengths_and_inner_products_do_not() -> None:
    weight, bias = make_rows()
    plain, mips = make_tables(tables=40), make_tables(mips=True, tables=40)
    for tables in (plain, mips):
        tables.rebuild(weight, bias)
    first = plain.codes.copy(), mips.codes.copy()
    weight[3:9] /= 10
    bias[3:9] /= 10
    for tables in (plain, mips):
        tables.update(torch.arange(3, 9), weight, bias)
    np.testing.assert_array_equal(plain.codes, first[0])
    assert (mips.codes != first[1])[3:9].any(1).all()
    weight, bias = make_rows()
    tables = make_tables(mips=True)
    tables.rebuild(weight, bias)
    norms = torch.cat([weight, bias], 1).norm(dim=1)
    assert tables.largest == pytest.approx(1.2 * float(norms.max()))
    before, largest = tables.codes.copy(), tables.largest
    weight[5] *= 1.1
    tables.update(torch.tensor([5]), weight, bias)
    assert tables.largest == largest
    weight[5] *= 100
    tables.update(torch.tensor([5]), weight, bias)
    assert tables.largest > 50 * largest
    assert (before != tables.codes).mean() > 0.1, "all rows are lifted otherwise now"


@pytest.mark.parametrize("kind", ["simhash", "structured", "dwta"])
def test_a_state_goes_on_bit_for_bit(kind: str) -> None:
    def make(seed: int) -> HashTables:
        if kind == "dwta":
            return HashTables(V, DWTA(D, tables=4, hashes=2, window=4, seed=seed), keep=True)
        family = SimHash if kind == "simhash" else StructuredSimHash
        return HashTables(V, family(D, tables=4, bits=4, seed=seed), keep=True)

    weight, bias = make_rows()
    tables = make(1)
    tables.rebuild(weight, bias)
    weight[4:90] += 1
    tables.update(torch.arange(4, 90), weight, bias)
    other = make(2)
    other.rebuild(*make_rows(5))
    state = copy.deepcopy(tables.state_dict())
    other.load_state_dict(state)
    np.testing.assert_equal(tables.kept, other.kept)
    assert np.asarray(other.kept).dtype == (np.uint16 if kind == "dwta" else np.float32)
    hidden_states = torch.randn(20, D, generator=torch.Generator().manual_seed(2))
    buckets, _ = tables.of_contexts(hidden_states)
    np.testing.assert_array_equal(buckets, other.of_contexts(hidden_states)[0])
    targets = np.arange(20)[:, None]
    for limit, fair in ((V, False), (9, False), (9, True)):
        asked: Any = buckets, targets, limit, StepRng(1, 2)
        found, wanted = (t.look_up(*asked, fair=fair) for t in (tables, other))
        np.testing.assert_equal(found, wanted)
    mine, theirs = (each.look_up_batch(buckets, targets, 30) for each in (tables, other))
    np.testing.assert_array_equal(mine, theirs)


def test_states_of_other_tables_are_refused() -> None:
    plain, keeping, more = make_tables(), make_tables(keep=True), make_tables(tables=6)
    for tables in (plain, keeping, more):
        tables.rebuild(*make_rows())
    with pytest.raises(InvalidRequest, match="rows"):
        keeping.load_state_dict(plain.state_dict())
    with pytest.raises(InvalidRequest, match="shape"):
        more.load_state_dict(plain.state_dict())
    plain.load_state_dict(keeping.state_dict())
    assert plain.kept is None


def test_rows_of_zeros_are_hashed() -> None:
    weight, _ = make_rows()
    weight[3] = 0
    for mips in (False, True):
        for rows in (weight, torch.zeros(V, D)):
            tables = make_tables(mips=mips, keep=True)
            tables.rebuild(rows, None)
            assert np.isfinite(np.asarray(tables.kept)).all()
