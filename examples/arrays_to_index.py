# /// script
# requires-python = ">=3.11"
# dependencies = ["logitsieve[builder]"]
#
# [tool.uv.sources]
# logitsieve = { path = ".." }
# ///
"""From arrays to an index: build, open, ask, measure.

    python examples/arrays_to_index.py softmax.npz models/lm/1

The file holds `W` [V, D], optionally `b` [V], and `contexts` [N, D], the vectors that the model
hands to its output layer.
"""

import sys
from pathlib import Path

import numpy as np

from logitsieve.decoding import LocalDecoder
from logitsieve.index_builder import BuildConfig, build


def main(arrays: Path, out: Path, config: BuildConfig | None = None) -> None:
    """Build the index `out` from `arrays`, then compare its heads on the last contexts."""
    softmax = np.load(arrays)
    weight, contexts = softmax["W"], softmax["contexts"]
    bias = softmax.get("b", np.zeros(len(weight), np.float32))

    target = {"p1": 0.99}  # share of contexts with the best id found by `screen`
    index = build(
        weight, bias, contexts, out, target_precision=target, best_effort=True, config=config
    )

    decoder = LocalDecoder(index)
    hidden_states = contexts[-64:]  # [B, D]
    truth = decoder.topk(hidden_states, 5, head="full")
    for head in ("sketch", "screen"):
        reply = decoder.topk(hidden_states, 5, head=head)
        same = (reply.ids == truth.ids).mean()
        proven, rows = reply.answer.proven.mean(), reply.answer.scanned.mean()
        print(f"{head:9}  same ids {same:.3f}  proven {proven:.3f}  rows {rows:,.0f}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
