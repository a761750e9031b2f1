"""Run a model over text and record the contexts that its output layer meets."""

from logitsieve.index_builder.capture.pytorch import CaptureConfig, capture

__all__ = ["CaptureConfig", "capture"]
