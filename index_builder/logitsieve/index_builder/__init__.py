"""Build an index from a frozen softmax and the contexts it meets."""

from logitsieve.index_builder.build import build
from logitsieve.index_builder.config import BuildConfig, TuneConfig
from logitsieve.index_builder.data.arrays import load_array
from logitsieve.index_builder.data.contexts import Contexts
from logitsieve.index_builder.tune import tune
from logitsieve.utils.options import Progress

__all__ = ["BuildConfig", "Contexts", "Progress", "TuneConfig", "build", "load_array", "tune"]
