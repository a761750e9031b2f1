"""Hash tables that follow their rows."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from logitsieve.api.errors import InvalidRequest
from logitsieve.training.autograd.rng import StepRng
from logitsieve.training.structures.hashing import SimHash
from logitsieve.training.structures.tables import HashTables

V, D = 150, 12


def make_rows(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(V, D, generator=generator), torch.randn(V, 1, generator=generator)


def make_tables(*, keep: bool = False) -> HashTables:
    return HashTables(V, SimHash(D, tables=5, bits=4, seed=3), keep=keep)


def everything(tables: HashTables, hidden: torch.Tensor) -> list[list[int]]:
    buckets, _ = tables.of_contexts(hidden)
    none = np.full((len(hidden), 1), -1)
    offsets, ids, _ = tables.look_up(buckets, none, V, StepRng(0, 0))
    return [part.tolist() for part in np.split(ids, offsets[1:-1])]


def test_a_thousand_updates_find_what_new_tables_find() -> None:
    weight, bias = make_rows()
    tables = make_tables(keep=True)
    tables.rebuild(weight, bias)
    generator = torch.Generator().manual_seed(1)
    for _ in range(1000):
        rows = torch.randperm(V, generator=generator)[:7].sort().values
        weight[rows] += 0.1 * torch.randn(7, D, generator=generator)
        tables.update(rows, weight, bias)
    other = make_tables(keep=True)
    other.rebuild(weight, bias)
    hidden = torch.randn(20, D, generator=generator)
    assert everything(tables, hidden) == everything(other, hidden)
    np.testing.assert_array_equal(tables.codes, other.codes)
    assert tables.kept is not None
    assert other.kept is not None
    np.testing.assert_array_equal(tables.kept, other.kept)


def test_a_row_is_found_where_it_was_hashed_until_it_is_updated() -> None:
    weight, bias = make_rows()
    tables = make_tables()
    tables.rebuild(weight, bias)
    hidden = torch.cat([weight[7:8] * 3, -weight[7:8] * 3])
    assert 7 in everything(tables, hidden)[0]
    weight[7], bias[7] = -weight[7], -bias[7]
    assert 7 in everything(tables, hidden)[0]
    tables.update(torch.tensor([7]), weight, bias)
    there, away = everything(tables, hidden)[1], everything(tables, hidden)[0]
    assert 7 in there
    assert 7 not in away


def test_tables_are_copied_with_scratch_of_their_own() -> None:
    tables = make_tables()
    tables.rebuild(*make_rows())
    hidden = torch.ones(1, D)
    found = everything(tables, hidden)
    other = copy.deepcopy(tables)
    assert everything(other, hidden) == found
    assert other.scratch is not tables.scratch


def test_a_row_of_zeros_and_no_bias_are_hashed() -> None:
    weight, _ = make_rows()
    weight[3] = 0
    for rows in (weight, torch.zeros(V, D)):
        tables = make_tables(keep=True)
        tables.rebuild(rows, None)
        assert tables.kept is not None
        assert np.isfinite(tables.kept).all()


def test_angles_ignore_lengths() -> None:
    weight, bias = make_rows()
    tables = make_tables()
    tables.rebuild(weight, bias)
    first = tables.codes.copy()
    tables.update(torch.arange(3, 9), weight / 10, bias / 10)
    np.testing.assert_array_equal(tables.codes, first)


def test_more_ids_than_offsets_can_count_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="at most 2 tables"):
        HashTables(2**30 - 1, SimHash(D, tables=3, bits=4, seed=3))
