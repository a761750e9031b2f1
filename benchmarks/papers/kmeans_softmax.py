"""Igbinedion, Phillips, Levy, Fast Softmax Sampling for Deep Neural Networks."""

from benchmarks.papers.classification import DIM, Prototypes, classifiers
from benchmarks.papers.runs import Options, Rows, Run, language_models, steps

LABELS, BATCH = 5000, 300
FEW = ["kmeans:k=71;n_uniform=354", "kmeans:k=707"]  # K = 1 and 10 in the paper
PERIODS = (1, 5, 10)
RATES = [0.2, 0.4]


def table_1(options: Options) -> Rows:
    """Steps in the same seconds, and P@1, for each K and period of the clusters."""
    task = Prototypes(LABELS)
    yield from classifiers(task, ["full"], BATCH, options)
    for every in PERIODS:
        yield from classifiers(task, FEW, BATCH, options, every)


def figure_2(options: Options) -> Rows:
    """Milliseconds of the forward pass alone, by K."""
    return steps(["full", *FEW], LABELS, DIM, BATCH, forward=True)


def perplexity(options: Options) -> Rows:
    """Perplexity of a language model, with sets as large as LSH Softmax's in its Table 1."""
    return language_models(["kmeans:k=1000;n_uniform=100"], RATES, options)


RUNS: dict[str, Run] = {"table 1": table_1, "figure 2": figure_2, "perplexity": perplexity}
