"""Text that is learnt in seconds, and options of a run over it."""

from pathlib import Path
from typing import Any

from logitsieve.training.trainer import TrainConfig

RING = "abcdefgh" * 3


def write_ring(file: Path, repeats: int = 12) -> Path:
    """Lines in which each letter is followed by the next one, in a ring."""
    lines = [" ".join(RING[start : start + 8]) for start in range(8)] * repeats
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def ring_config(folder: Path, **options: Any) -> TrainConfig:
    """A run of 38 steps; dropout draws, and streams that begin elsewhere in each epoch."""
    text = write_ring(folder / "ring.txt")
    small: dict[str, Any] = {"text": text, "loss": "uniform", "loss_option": ("n_sampled=4",)}
    small |= {"vocab_size": 12, "dim": 8, "epochs": 2, "batch_size": 4, "bptt": 10, "lr": 0.03}
    return TrainConfig(**{**small, "valid_every": 7, "checkpoint_every": 3, **options})
