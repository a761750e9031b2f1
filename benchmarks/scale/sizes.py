"""Sizes of the softmaxes and indexes that are measured."""

from __future__ import annotations

WORDS = (10_000, 30_000, 100_000, 300_000, 1_000_000)
DIM = 200
SHARDS = (1, 2, 4, 8)
LOST = 4  # shards, of which each is lost in turn
SHARDED, REPLICATED = KINDS = "shards", "replicated"  # without and with rows beside the shards
