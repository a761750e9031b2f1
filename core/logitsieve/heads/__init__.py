"""Heads: ways to find the largest logits, one file each."""

from __future__ import annotations

from logitsieve.heads._base.head import Head, Softmax
from logitsieve.heads.certified import CertifiedHead
from logitsieve.heads.exact import ExactHead
from logitsieve.heads.frequency import FrequencyHead
from logitsieve.heads.graph import GraphHead
from logitsieve.heads.ivf import IvfHead
from logitsieve.heads.lsh import LshHead
from logitsieve.heads.screen import ScreenHead
from logitsieve.heads.svd import SvdHead

HEADS: dict[str, type[Head]] = {
    "exact": ExactHead,
    "certified": CertifiedHead,
    "screen": ScreenHead,
    "svd": SvdHead,
    "lsh": LshHead,
    "graph": GraphHead,
    "ivf": IvfHead,
    "frequency": FrequencyHead,
}

__all__ = [
    "HEADS",
    "CertifiedHead",
    "ExactHead",
    "FrequencyHead",
    "GraphHead",
    "Head",
    "IvfHead",
    "LshHead",
    "ScreenHead",
    "Softmax",
    "SvdHead",
]
