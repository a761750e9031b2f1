"""A decoder over an index in shards: the answers of the index that was split.

It is `LocalDecoder` over heads that ask every shard and merge what they get (heads/sharded), so
constraints, filters, scores and beams are decided once, in one place, as they are over one W.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

import numpy as np

from logitsieve.decoding.decoder import LocalDecoder
from logitsieve.index import Index


class ShardedDecoder(LocalDecoder):
    """Answers from an open index in shards. Any number of threads may call it.

    Ids, logits, draws, beams and an exact log Z are those of the whole index, bit for bit; a log Z
    by bounds is another estimate in another proven interval. The normalizers `lowrank` and
    `sampled`, and draws by a head that proves nothing, need all of W: they are refused.
    """

    in_shards: ClassVar[bool] = True

    def warm(self, progress: Callable[[str, int, int], None] | None = None) -> None:
        """Compile every kernel that a request may need, so that none waits for a compiler."""
        self.index.warm(progress)
        zeros = np.zeros((1, self.index.dim), np.float32)
        self.beam_step(zeros, beams_in=1, beams_out=1)
        self.sample(zeros, top_k=1)
        for head in set(self.index.heads) & {"exact", "certified"}:
            self.sample(zeros, head=head)
            self.sample(zeros, head=head, top_p=0.5)


def decoder_of(index: Index, *, name: str = "") -> LocalDecoder:
    """The decoder over an index, in one piece or in shards."""
    kind = ShardedDecoder if index.manifest.shards else LocalDecoder
    return kind(index, name=name)
