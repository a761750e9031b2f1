"""Igbinedion, Phillips, Levy, Fast Softmax Sampling for Deep Neural Networks."""

from benchmarks.papers.classification import Prototypes, classifiers
from benchmarks.papers.runs import Options, Rows, Run

LABELS, BATCH = 5000, 300
FEW = ["kmeans:k=71;n_uniform=354", "kmeans:k=707"]  # K = 1 and 10 in the paper
PERIODS = (1, 5, 10)


def table_1(options: Options) -> Rows:
    """Steps in the same seconds, and P@1, for each K and period of the clusters."""
    task = Prototypes(LABELS)
    yield from classifiers(task, ["full"], BATCH, options)
    for every in PERIODS:
        yield from classifiers(task, FEW, BATCH, options, every)


RUNS: dict[str, Run] = {"table 1": table_1}
