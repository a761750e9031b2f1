"""Igbinedion, Phillips, Levy, Fast Softmax Sampling for Deep Neural Networks."""

from benchmarks.papers.classification import Prototypes, classifiers
from benchmarks.papers.runs import Options, Rows, Run

LABELS, BATCH = 5000, 300
SIZES = {"full": "full", "K = 1": "kmeans:k=71;n_uniform=354", "K = 10": "kmeans:k=707"}
PERIODS = (1, 5, 10)


def table_1(options: Options) -> Rows:
    """Steps in the same seconds, and P@1, for each K and period of the clusters."""
    task = Prototypes(LABELS)
    found = classifiers(task, [SIZES["full"]], BATCH, options)
    for every in PERIODS:
        found += classifiers(task, [SIZES["K = 1"], SIZES["K = 10"]], BATCH, options, every)
    return found


RUNS: dict[str, Run] = {"table 1": table_1}
