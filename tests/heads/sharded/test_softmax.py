"""A softmax in shards gives the logits of any ids, and no address of all of W."""

from __future__ import annotations

import numpy as np
import pytest

from logitsieve.api.errors import InvalidRequest
from tests.sharded import SHARDS, D, V, shards_of, softmax_of
from tests.synthetic import make_hidden


@pytest.mark.parametrize("shards", SHARDS)
def test_logits_and_rows_are_those_of_one_matrix(shards: int) -> None:
    whole, parts = softmax_of(False), shards_of(shards, False)
    hidden, random = make_hidden(4, D), np.random.default_rng(shards)
    ids = random.integers(0, V, 100).astype(np.int32)
    offsets = np.array([0, 40, 40, 90, 100])
    np.testing.assert_array_equal(
        parts.logits64(hidden, offsets, ids), whole.logits64(hidden, offsets, ids)
    )
    np.testing.assert_array_equal(
        parts.rows(ids.astype(np.int64)), whole.rows(ids.astype(np.int64))
    )
    np.testing.assert_array_equal(parts.rows(slice(200, 900)), whole.rows(slice(200, 900)))
    assert (parts.vocab_size, parts.dim, parts.shards[-1].norms) == (V, D, whole.norms)


def test_a_bad_row_is_refused_where_it_owns_no_ids() -> None:
    hidden = make_hidden(2, D)
    hidden[1] = np.nan
    with pytest.raises(InvalidRequest, match=r"hidden\[1\]"):
        shards_of(3, False).check_hidden(hidden)


def test_there_is_no_address_of_all_rows() -> None:
    with pytest.raises(InvalidRequest, match="3 shards"):
        _ = shards_of(3, False).descriptor
