"""Run a model over text and record the contexts that its output layer meets."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from logitsieve.index_builder.config import CaptureConfig

if TYPE_CHECKING:
    from logitsieve.index_builder.capture.pytorch import capture

__all__ = ["CaptureConfig", "capture"]


def __getattr__(name: str) -> Any:
    """Import `capture` and torch on first use, since llama.cpp's contexts need no torch."""
    if name != "capture":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("logitsieve.index_builder.capture.pytorch").capture
