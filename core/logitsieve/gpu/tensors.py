"""Telling tensors from all else; decoding/GPU answers them.

PyTorch is an extra, and not imported for this.

Shape letters: B batch rows, D hidden size.
"""

from __future__ import annotations

import sys
from typing import Any, cast

from logitsieve.api.results import ArrayLike
from logitsieve.heads._base.head import ready_hidden
from logitsieve.index import Index


def is_tensor(value: Any) -> bool:
    """Whether it is PyTorch's."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def rows_of(index: Index, hidden: ArrayLike) -> Any:
    """[B, D]: of a tensor on the index's GPU a tensor, of anything else a float32 array.

    InvalidRequest names what is wrong with it.
    """
    if index.device != "cpu" and is_tensor(hidden):
        there = cast(Any, index.head("exact")).rows_there(hidden)
        if there is not None:
            return there
    return ready_hidden(hidden, index.dim)


def tensors_apart(
    hidden: Any, **values: ArrayLike | None
) -> tuple[dict[str, ArrayLike | None], dict[str, Any]]:
    """What goes with `hidden`: all of it but with None for tensors, and these by name.

    None are set apart where hidden is an array.
    """
    there = is_tensor(hidden)
    tensors = {name: value for name, value in values.items() if there and is_tensor(value)}
    return {name: None if name in tensors else value for name, value in values.items()}, tensors
