"""Daghaghi et al. 2020, A Truly Constant-Time Distribution-Aware Negative Sampling."""

from benchmarks.papers.classification import Prototypes, classifiers, debian
from benchmarks.papers.runs import Options, Rows, Run

LABELS, BATCH = 100_000, 256
FEW = "cap=150;n_uniform=50"
SIMHASH = f"lns:{FEW};hashes=12;tables=20"
DWTA = f"lns:{FEW};hashing=dwta;hashes=5;tables=350"  # K and L of WikiLSHTC-325K
METHODS = [
    "full",
    f"{SIMHASH};query=label",
    f"{SIMHASH};query=embedding",
    f"{SIMHASH};query=embedding;in_batch=true",
    f"{DWTA};query=embedding",
    f"{SIMHASH};query=label;corrected=false",
    "lsh",
    "log-uniform:n_sampled=1000",
    "log-uniform:n_sampled=1000;in_batch=true",
    "unigram:n_sampled=1000",
    "nce:n_sampled=1000",
    "top-k:k=200",
    "d-softmax",
]


def figure_4(options: Options) -> Rows:
    """Precision after the same seconds: prototypes of confusable labels, then real labels."""
    for task in (Prototypes(LABELS), debian()):
        yield from classifiers(task, METHODS, BATCH, options)


RUNS: dict[str, Run] = {"figure 4": figure_4}
