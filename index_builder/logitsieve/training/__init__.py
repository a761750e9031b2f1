"""PyTorch losses over a huge softmax that cost less than the softmax.

Shape letters: B rows that have a target, D hidden size, V classes, P pairs of a row and a target, M
targets of a row, or candidates of a batch, E candidates of all rows, U different classes, L hash
tables of vectors of size X = D + 2.
"""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from logitsieve.utils.options import check_ranges, option

if TYPE_CHECKING:
    from logitsieve.training.losses import *  # noqa: F403  # its __all__ is the one list of names


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Options of `logitsieve train`."""

    text: Path | None = option(
        None, "Text to train on: UTF-8, plain or gzipped, words separated by spaces."
    )
    valid: Path | None = option(None, "Text to validate on; unset: the end of --text.")
    loss: str = option("full", "Loss: a name that --losses lists.")
    loss_option: tuple[str, ...] = option(
        (), "An option of the loss as NAME=VALUE; --losses lists them."
    )
    vocab_size: int = option(10_000, "Most words in the vocabulary, V.", 2, 2**31 - 1)
    dim: int = option(200, "Hidden size, D.", 1, 1 << 16)
    layers: int = option(2, "LSTM layers.", 1, 64)
    tied: bool = option(True, "Whether the softmax's matrix is the input embedding too.")
    dropout: float = option(0.2, "Share dropped between layers.", 0, 0.99)
    epochs: int = option(10, "Times through the text.", 1, 1_000_000)
    words: int | None = option(None, "Most words to train on; unset: all epochs.", 1, 2**62)
    batch_size: int = option(32, "Streams of text that a step reads.", 1, 1 << 20)
    bptt: int = option(35, "Words back-propagated through, in each stream.", 1, 1 << 20)
    lr: float = option(3e-3, "Highest learning rate of the LSTM.", 1e-9, 1e3)
    head_lr: float = option(0.2, "Highest learning rate of embedding and softmax.", 1e-9, 1e3)
    weight_decay: float = option(0.01, "Weight decay of the LSTM.", 0, 10)
    warm_up: float = option(
        0.02, "Share of steps in which the rate rises; then it falls to 0.", 0, 1
    )
    clip: float = option(0.5, "Highest norm of the gradient.", 1e-9, 1e9)
    index_every: int = option(
        50, "Steps after which a loss that has an index updates it.", 1, 2**31
    )
    index_growth: float = option(1.0, "Factor by which that period grows each time.", 1, 100)
    valid_share: float = option(
        0.1, "Share of the text that is held out, at its end, without --valid.", 1e-6, 0.9
    )
    valid_every: int | None = option(
        None, "Steps between validations; unset: once an epoch.", 1, 2**62
    )
    device: str = option("cpu", "Where: cpu, or cuda.")
    threads: int = option(1, "CPU threads.", 1, 1024)
    seed: int = option(1, "Seed of weights, dropout, streams and negatives.", 0, 2**31 - 1)
    checkpoint_every: int = option(500, "Steps between checkpoints.", 1, 2**62)

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def rows(self) -> int:
        """B, the contexts of a step."""
        return self.batch_size * self.bptt


def __getattr__(name: str) -> Any:
    """Import the losses and torch on first use, since options are read without torch."""
    losses = import_module("logitsieve.training.losses")
    if name not in losses.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(losses, name)
