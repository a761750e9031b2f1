"""Heads over a softmax whose rows lie in several shards."""

from __future__ import annotations

from logitsieve.heads._base.head import Head
from logitsieve.heads.sharded.bounded import ShardedCertified
from logitsieve.heads.sharded.dense import ShardedExact, ShardedHead
from logitsieve.heads.sharded.lost import BOUNDS, NO_IDS, Bounds
from logitsieve.heads.sharded.replicated import REPLICATED, ReplicatedRows
from logitsieve.heads.sharded.routed import ShardedScreen
from logitsieve.heads.sharded.shard import ALIGNED, Shard
from logitsieve.heads.sharded.softmax import ShardedSoftmax

# In the order of HEADS; other heads need all of W in one place.
SHARDED_HEADS: dict[str, type[Head]] = {
    "exact": ShardedExact,
    "certified": ShardedCertified,
    "screen": ShardedScreen,
}

__all__ = [
    "ALIGNED",
    "BOUNDS",
    "NO_IDS",
    "REPLICATED",
    "SHARDED_HEADS",
    "Bounds",
    "ReplicatedRows",
    "Shard",
    "ShardedHead",
    "ShardedScreen",
    "ShardedSoftmax",
]
