"""What the arrays of each part must be, by part name.

Two checks a part: `structure` (names, dtypes, shapes, and every number that a kernel uses as an
address) runs at each open; `values` reads every number and runs when the index is verified.

Shape letters: V vocabulary, D hidden size, C clusters, S list entries.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from logitsieve.heads.base import Head, checked_knobs
from logitsieve.index.manifest import HeadEntry
from logitsieve.types.errors import IndexUnreadable, InvalidKnob

Registry = Mapping[str, type[Head]]
Arrays = Mapping[str, np.ndarray]
Report = Callable[[int], None]  # called with the bytes done since the last call
CHUNK = 1 << 18  # elements looked at together: they stay in the cache
PIECE = 1 << 24  # bytes hashed between two reports


class PartCheck(NamedTuple):
    """`structure(file, arrays, V, D)` and `values(file, arrays, V, report)`: IndexUnreadable.

    `addresses` names the arrays that a kernel uses as addresses.
    """

    structure: Callable[[Path, Arrays, int, int], None]
    values: Callable[[Path, Arrays, int, Report], None]
    addresses: tuple[str, ...] = ()


def private(arrays: Arrays, names: tuple[str, ...]) -> Arrays:
    """`arrays`, those of `names` copied: once checked they stay, whoever writes to the file."""
    copies = {name: arrays[name].copy() for name in names if name in arrays}
    for copy in copies.values():
        copy.flags.writeable = False  # as the mapped ones: kernels are compiled for one kind
    return {**arrays, **copies}


def softmax_sha256(weight: np.ndarray, bias: np.ndarray, report: Report = lambda _: None) -> str:
    """The identity of a matrix [V, D] and its bias [V]: "F32 V D\\n", then their bytes, hashed."""
    digest = hashlib.sha256(f"F32 {weight.shape[0]} {weight.shape[1]}\n".encode())
    for array in (weight, bias):
        view = array.data.cast("B")
        for start in range(0, len(view), PIECE):
            piece = view[start : start + PIECE]
            digest.update(piece)
            report(len(piece))
    return digest.hexdigest()


def _softmax_structure(file: Path, arrays: Arrays, V: int, D: int) -> None:
    _expect(file, arrays, "weight", np.float32, (V, D))
    _expect(file, arrays, "bias", np.float32, (V,))


def _softmax_values(file: Path, arrays: Arrays, V: int, report: Report) -> None:
    _finite(file, arrays, "weight", report)
    _finite(file, arrays, "bias", report)


def _screen_structure(file: Path, arrays: Arrays, V: int, D: int) -> None:
    C = len(arrays["centroids"]) if "centroids" in arrays else 0
    _expect(file, arrays, "centroids", np.float32, (C, D))
    offsets = _expect(file, arrays, "offsets", np.int32, (C + 1,)).astype(np.int64)
    S = int(offsets[-1])
    if offsets[0] != 0 or (np.diff(offsets) <= 0).any():
        raise IndexUnreadable(file, "offsets do not begin at 0 and rise: a list would be empty")
    ids = _expect(file, arrays, "ids", np.int32, (S,))
    if ids.min() < 0 or ids.max() >= V:
        raise IndexUnreadable(file, f"ids reach {ids.min()} .. {ids.max()}, allowed: 0 .. {V - 1}")


def _screen_values(file: Path, arrays: Arrays, V: int, report: Report) -> None:
    _finite(file, arrays, "centroids", report)
    offsets, ids = arrays["offsets"], arrays["ids"]
    last_V = np.zeros(V, np.int32)  # where in its list an id stands last
    for cluster, (start, stop) in enumerate(pairwise(offsets.tolist())):
        places = np.arange(stop - start, dtype=np.int32)
        last_V[ids[start:stop]] = places
        if (last_V[ids[start:stop]] != places).any():
            raise IndexUnreadable(file, f"ids: the list of cluster {cluster} holds an id twice")
    report(ids.nbytes + offsets.nbytes)


def _expect(
    file: Path, arrays: Arrays, name: str, dtype: type[np.generic], shape: tuple[int, ...]
) -> np.ndarray:
    if name not in arrays:
        raise IndexUnreadable(file, f"holds no tensor {name!r}")
    array = arrays[name]
    if array.dtype != dtype or array.shape != shape:
        got, wanted = list(array.shape), list(shape)
        raise IndexUnreadable(
            file, f"{name} is {array.dtype} {got}, needed: {np.dtype(dtype)} {wanted}"
        )
    return array


def _finite(file: Path, arrays: Arrays, name: str, report: Report) -> None:
    flat = arrays[name].reshape(-1)
    for start in range(0, flat.size, CHUNK):
        good = np.isfinite(flat[start : start + CHUNK])
        if not good.all():
            row = (start + int(good.argmin())) // (flat.size // len(arrays[name]))
            raise IndexUnreadable(file, f"{name} is not finite in row {row}")
        report(good.size * flat.itemsize)


def check_heads(heads: Mapping[str, HeadEntry], registry: Registry) -> None:
    """ValueError unless the heads that `registry` knows have their part and possible knobs."""
    for name, entry in heads.items():
        if name not in registry:
            continue
        if entry.part != (part := HEAD_PARTS.get(name, name)):
            raise ValueError(f"head {name!r} names the part {entry.part!r}, needed: {part!r}")
        try:
            checked_knobs(registry[name].knob_table, {}, entry.knobs)
        except InvalidKnob as error:
            raise ValueError(f"head {name!r}: {error}") from error


CHECKS: dict[str, PartCheck] = {
    "softmax": PartCheck(_softmax_structure, _softmax_values),
    "screen": PartCheck(_screen_structure, _screen_values, ("offsets", "ids")),
}
HEAD_PARTS: dict[str, str | None] = {"exact": None}  # the parts of others bear the head's name
