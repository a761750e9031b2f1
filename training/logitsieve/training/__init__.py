"""PyTorch losses over a huge softmax that cost less than the softmax.

Shape letters: B rows that have a target, D hidden size, V classes, P pairs of a row and a target, M
targets of a row, or candidates of a batch, E candidates of all rows, U different classes, L hash
tables of vectors of size X = D + 2.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from logitsieve.training.losses import *  # noqa: F403  # its __all__ is the one list of names


def __getattr__(name: str) -> Any:
    """Import the losses, and torch with them, on first use; config.py is read without torch."""
    losses = import_module("logitsieve.training.losses")
    if name not in losses.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(losses, name)
