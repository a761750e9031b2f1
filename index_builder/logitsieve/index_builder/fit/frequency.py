import numpy as np

from logitsieve.index_builder.fitting import (
    FitInputs,
    FitResult,
    heldout_sample,
    label_counts,
    least_reaching,
)


def fit_frequency(inputs: FitInputs) -> FitResult:
    """Sort all ids by frequency, then by id; n is the least that suffices."""
    counts_V = label_counts(inputs)
    ids_V = np.argsort(-counts_V, kind="stable").astype(np.int32)
    place_V = np.empty(inputs.vocab_size, np.int64)
    place_V[ids_V] = np.arange(1, inputs.vocab_size + 1)
    _, labels_HK = heldout_sample(inputs)
    inputs.progress("fit frequency", 1, 1)
    knobs = {"n": least_reaching(place_V[labels_HK])}
    return FitResult({"ids": ids_V}, {"seen": int((counts_V > 0).sum())}, knobs)
