"""Inverted lists: rows of W clustered by k-means; the lists of the best centroids are scanned.

Auvolat, Chandar, Vincent, Larochelle, Bengio 2015, Clustering is Efficient for Approximate Maximum
Inner Product Search, with one level of clusters.

Time O(C D + S D) a row with C clusters; memory C D floats and V ids.
"""

from logitsieve.heads._base.head import Knob, by_knob
from logitsieve.heads._base.kernel_head import ClusteredHead
from logitsieve.heads._base.spec import Arrays, PartSpec, TensorSpec, all_different, no_empty_lists


def _is_partition(arrays: Arrays) -> None:
    no_empty_lists(arrays)
    all_different(arrays)


class IvfHead(ClusteredHead):
    """Looks at the rows of the `nprobe` clusters with the largest centroid . h + bias."""

    name = "ivf"
    part = PartSpec(
        "ivf",
        {
            "centroids": TensorSpec("float32", ("C", "D")),
            "biases": TensorSpec("float32", ("C",)),
            "offsets": TensorSpec("int32", ("C+1",), "offsets", "V"),
            "ids": TensorSpec("int32", ("V",), "ids", "V"),
        },
        _is_partition,
    )
    disjoint = True
    probed = "nprobe"
    knob_table = by_knob(
        nprobe=Knob(
            help="best clusters to scan: precision for time",
            default=16,
            high=65_535,
            tried=(1, 2, 4, 8, 16, 32, 64, 128),
        )
    )
    limits = by_knob(nprobe=lambda arrays, _: len(arrays["centroids"]))
