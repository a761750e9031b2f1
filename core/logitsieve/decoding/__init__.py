"""From logits to decisions."""

from logitsieve.decoding.auto import answers_on, measured_elsewhere
from logitsieve.decoding.decoder import LocalDecoder
from logitsieve.decoding.normalizers import NORMALIZERS
from logitsieve.decoding.sharded import ShardedDecoder, decoder_of

__all__ = [
    "NORMALIZERS",
    "LocalDecoder",
    "ShardedDecoder",
    "answers_on",
    "decoder_of",
    "measured_elsewhere",
]
