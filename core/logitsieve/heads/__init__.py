"""Heads: ways to find the largest logits, one file each."""

from collections.abc import Mapping

from logitsieve.api.keywords import FALLBACKS
from logitsieve.heads._base.head import Softmax
from logitsieve.heads._base.kernel_head import Head
from logitsieve.heads._base.spec import Arrays
from logitsieve.heads.frequency import FrequencyHead
from logitsieve.heads.full import FullHead
from logitsieve.heads.lsh import LshHead
from logitsieve.heads.screen import ScreenHead
from logitsieve.heads.sketch import SketchHead
from logitsieve.heads.svd import SvdHead

HEADS: dict[str, type[Head]] = {
    "full": FullHead,
    "sketch": SketchHead,
    "screen": ScreenHead,
    "svd": SvdHead,
    "lsh": LshHead,
    "frequency": FrequencyHead,
}


def make_heads(
    registry: Mapping[str, type[Head]],
    softmax: Softmax,
    parts: Mapping[str, Arrays],
    knobs: Mapping[str, Mapping[str, float]],
    threads: int,
    fallback: str = "",
) -> dict[str, Head]:
    """Make `full` and the heads that `knobs` names, in the order of the registry.

    Rows that a head cannot answer go to the head `fallback` (one of FALLBACKS) if the index has it,
    else to the last head made before with a known `max_error`.
    """
    heads: dict[str, Head] = {}
    last: Head | None = None
    names = [name for name in registry if name == "full" or name in knobs]
    for name in sorted(names, key=lambda name: (name not in FALLBACKS, names.index(name))):
        kind = registry[name]
        arrays = dict(parts[kind.part.name]) if kind.part else {}
        named = heads.get(fallback) if fallback in FALLBACKS else None
        heads[name] = kind.from_arrays(
            softmax, arrays, fallback=named or last, threads=threads, knobs=knobs.get(name, {})
        )
        if heads[name].max_error < 1.0:
            last = heads[name]
    return {name: heads[name] for name in names}


__all__ = [
    "HEADS",
    "FrequencyHead",
    "FullHead",
    "Head",
    "LshHead",
    "ScreenHead",
    "SketchHead",
    "Softmax",
    "SvdHead",
    "make_heads",
]  # fmt: skip
