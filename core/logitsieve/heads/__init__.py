"""Heads: ways to find the largest logits, one file each."""

from __future__ import annotations

from logitsieve.heads.base import Head, Softmax
from logitsieve.heads.certified import CertifiedHead
from logitsieve.heads.exact import ExactHead
from logitsieve.heads.lsh import LshHead
from logitsieve.heads.screen import ScreenHead

HEADS: dict[str, type[Head]] = {
    "exact": ExactHead,
    "certified": CertifiedHead,
    "screen": ScreenHead,
    "lsh": LshHead,
}

__all__ = ["HEADS", "CertifiedHead", "ExactHead", "Head", "LshHead", "ScreenHead", "Softmax"]
