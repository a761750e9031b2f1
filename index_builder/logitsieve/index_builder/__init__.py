"""Build an index from a frozen softmax and the contexts it meets."""

from logitsieve.index_builder.arrays import load_array
from logitsieve.index_builder.build import build
from logitsieve.index_builder.config import BuildConfig, Progress
from logitsieve.index_builder.contexts import Contexts

__all__ = ["BuildConfig", "Contexts", "Progress", "build", "load_array"]
