"""From logits to decisions."""

from logitsieve.decoding.auto import answers_on, measured_elsewhere
from logitsieve.decoding.local_decoder import LocalDecoder
from logitsieve.decoding.normalizers import NORMALIZERS
from logitsieve.decoding.sharded import ShardedDecoder, open_sharded
from logitsieve.decoding.shards import Shard

__all__ = [
    "NORMALIZERS", "LocalDecoder", "Shard", "ShardedDecoder", "answers_on", "measured_elsewhere",
    "open_sharded",
]  # fmt: skip
