"""From logits to decisions."""

from logitsieve.decoding.auto import measured_elsewhere
from logitsieve.decoding.local import LocalDecoder
from logitsieve.decoding.normalizers import NORMALIZERS

__all__ = ["NORMALIZERS", "LocalDecoder", "measured_elsewhere"]
