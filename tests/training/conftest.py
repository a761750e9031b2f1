"""Sparse tensors are checked wherever torch makes them in these tests, on one thread."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> Iterator[None]:
    """Tensors are tiny here: more threads would only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _sparse_tensors_are_checked() -> Iterator[None]:
    with torch.sparse.check_sparse_tensor_invariants():  # type: ignore[no-untyped-call]
        yield
