"""Heads: ways to find the largest logits, one file each."""

from __future__ import annotations

from logitsieve.heads.base import Head, Softmax
from logitsieve.heads.exact import ExactHead
from logitsieve.heads.screen import ScreenHead

HEADS: dict[str, type[Head]] = {"exact": ExactHead, "screen": ScreenHead}

__all__ = ["HEADS", "ExactHead", "Head", "ScreenHead", "Softmax"]
