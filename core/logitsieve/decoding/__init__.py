"""From logits to decisions."""

from logitsieve.decoding.auto import answers_on, measured_elsewhere
from logitsieve.decoding.decoder import LocalDecoder
from logitsieve.decoding.normalizers import NORMALIZERS

__all__ = [
    "NORMALIZERS",
    "LocalDecoder",
    "answers_on",
    "measured_elsewhere",
]
