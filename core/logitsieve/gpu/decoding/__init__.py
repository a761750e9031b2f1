"""A decoder's answers to tensors on a card, in tensors there."""

from logitsieve.gpu.decoding.decoder import CardDecoder

__all__ = ["CardDecoder"]
