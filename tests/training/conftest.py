"""Sparse tensors are checked wherever torch makes them in these tests."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _sparse_tensors_are_checked() -> Iterator[None]:
    with torch.sparse.check_sparse_tensor_invariants():  # type: ignore[no-untyped-call]
        yield
