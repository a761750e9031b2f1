"""A decoder's answers to tensors on a card, in tensors there."""

from logitsieve.decoding.card.decoder import CardDecoder

__all__ = ["CardDecoder"]
