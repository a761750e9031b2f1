"""Build an index from a frozen softmax and the contexts it meets.

Shape letters: D hidden size, V vocabulary, N contexts to fit on, H held-out contexts, S sampled
contexts, K labels per context, C clusters, P coordinates of a sketch or (cluster, label) pairs, G
groups of 16 rows, R rows of a block, L hash tables of N bits, X = D + 2, T tokens of a window.
"""

from logitsieve.index_builder.arrays import load_array
from logitsieve.index_builder.build import build
from logitsieve.index_builder.config import BuildConfig, TuneConfig
from logitsieve.index_builder.contexts import Contexts
from logitsieve.index_builder.tune import tune
from logitsieve.utils.options import Progress

__all__ = ["BuildConfig", "Contexts", "Progress", "TuneConfig", "build", "load_array", "tune"]
