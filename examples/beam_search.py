# /// script
# requires-python = ">=3.11"
# dependencies = ["logitsieve[server]"]
#
# [tool.uv.sources]
# logitsieve = { path = ".." }
# ///
"""Beam search with a model of your own between the steps.

    python examples/beam_search.py models/lm/1

`Model` stands for your decoder: it turns the tokens of a step into hidden states [R, D]. Here it
looks up a fixed vector for each token, so that the script runs with any index.
"""

import sys

import numpy as np

from logitsieve.client.beam_search import beam_search
from logitsieve.decoding import LocalDecoder
from logitsieve.index import open_index


class Model:
    """A hidden state for each token, mixed with the state before it."""

    def __init__(self, vocab_size: int, dim: int, sentences: int) -> None:
        rng = np.random.default_rng(0)
        self.embedding = rng.standard_normal((vocab_size, dim)).astype(np.float32)
        self.state = rng.standard_normal((sentences, dim)).astype(np.float32)

    def step(self, parents: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Continue row parents[r] with tokens[r]: int32 [R] each, to hidden_states [R, D]."""
        self.state = 0.5 * self.state[parents] + self.embedding[tokens]
        return self.state


def main(path: str) -> None:
    """Search for two sentences at once and print the best hypotheses of each."""
    index = open_index(path)
    model = Model(index.vocab_size, index.dim, sentences=2)
    result = beam_search(
        LocalDecoder(index),
        model.state,  # hidden_states [2, D] of the first tokens
        model.step,
        num_beams=4,
        eos_ids=[1],
        max_tokens=8,
        n_best=2,
        head="sketch",
        normalizer="full",
    )
    for sentence, hypotheses in enumerate(result.hypotheses):
        for hypothesis in hypotheses:
            print(sentence, f"{hypothesis.score:8.3f}", hypothesis.tokens)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
