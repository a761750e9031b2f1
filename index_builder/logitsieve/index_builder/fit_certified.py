"""The sketch of `certified`: rotated coordinates of every row in bytes, and what they leave out.

docs/certified.md derives the bound and what is stored for it. Everything is computed in float64
from the arrays as they are stored, and rounded so that the bound can only grow.

Shape letters: V vocabulary, D hidden size, M coordinates, G groups of 16 rows, R rows of a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from logitsieve.evaluation import us_per_row
from logitsieve.heads import CertifiedHead, Softmax
from logitsieve.index_builder.config import BuildConfig, Progress
from logitsieve.index_builder.fitted import Made
from logitsieve.index_builder.material import Material
from logitsieve.kernels.lanes import LANES
from logitsieve.kernels.sketch import EXTRA
from logitsieve.types.results import Float32, Float64

COARSE = (16, 32, 48, 64, 96, 128, 192, 256)  # bytes of coarse codes tried
FINE = (64, 128, 192, 256, 384, 512)  # bytes of fine ones
START = (1, 1)  # places in these where the search begins
TIMED_ROWS, TIMED_K, TIMINGS = 256, 5, 3
MOST = 127  # the largest code
LEAST_SCALE = 1e-30  # a normal number in float32, and so is what is divided by it
SHARE = 1e-6  # least scale over the norm of a row: what float64 rounds away is nothing beside it
ROUNDED = 1 + 1e-6  # of a norm in float64, before it is rounded up to float32
BLOCK_ROWS = 4096


class Widths(NamedTuple):
    """Bytes a row of the two codings; the fine ones with their scale and rest."""

    coarse: int
    fine: int

    @property
    def memory(self) -> int:
        """Bytes a row of the sketch, its basis aside."""
        return self.coarse + EXTRA + self.fine


class _Codes(NamedTuple):
    """The codes of some coordinates of R rows."""

    codes: np.ndarray  # uint8 [R, m], 128 more than the whole numbers they stand for
    scales: Float32  # [R]
    error: float  # kappa: the largest coding error over its scale
    length: float  # Q: the largest norm over its scale


def fit_certified(material: Material, config: BuildConfig, progress: Progress) -> Made:
    """The sketch that answers fastest, by measuring, of those within their share of memory.

    The smallest is always among them.
    """
    softmax = material.softmax
    rotation_DD = rotation(softmax, material.sample)
    hidden = material.heldout.sample(TIMED_ROWS)
    measured: dict[Widths, float] = {}

    def time(widths: Widths) -> float:
        if widths not in measured:
            measured[widths] = _time(softmax, encode(softmax, rotation_DD, widths), hidden)
            progress("sketch", len(measured), 0)
        return measured[widths]

    best = Widths(COARSE[START[0]], FINE[START[1]])
    if best.memory > config.certified_memory * 4 * softmax.dim:
        best = Widths(COARSE[0], FINE[0])
    while True:
        near = min(_neighbours(best, softmax.dim, config.certified_memory), key=time, default=best)
        if time(near) >= time(best):
            break
        best = near
    arrays = encode(softmax, rotation_DD, best)
    summary = {**best._asdict(), "coordinates": len(arrays["basis"])}
    history = [{**widths._asdict(), "us_per_row": us} for widths, us in measured.items()]
    return Made(arrays, summary, {}, history)


def _neighbours(widths: Widths, dim: int, share: float) -> list[Widths]:
    """One step wider or narrower in either coding, within `share` of W, no wider than D needs."""
    coarse, fine = COARSE.index(widths.coarse), FINE.index(widths.fine)
    steps = [(coarse - 1, fine), (coarse + 1, fine), (coarse, fine - 1), (coarse, fine + 1)]
    near = [
        Widths(COARSE[i], FINE[j])
        for i, j in steps
        if 0 <= i < len(COARSE) and 0 <= j < len(FINE) and COARSE[i] <= FINE[j]
    ]
    return [w for w in near if w.memory <= share * 4 * dim and w.fine < 2 * max(dim, FINE[0])]


def _time(softmax: Softmax, arrays: dict[str, np.ndarray], hidden: Float32) -> float:
    head = CertifiedHead(softmax, arrays)
    k = min(TIMED_K, softmax.vocab_size)
    return min(us_per_row(head, hidden, k, 1, calls=len(hidden)) for _ in range(TIMINGS))


def rotation(softmax: Softmax, hidden: Float32) -> Float64:
    """[D, D]: rows are the directions in which rows of W and contexts are longest, longest first.

    Eigenvectors of W^T W + E[h h^T], each over its trace.
    """
    second_DD = np.zeros((softmax.dim, softmax.dim))
    for matrix in (softmax.weight, hidden):
        moments_DD = np.zeros_like(second_DD)
        for rows_RD in _blocks(matrix):
            moments_DD += rows_RD.T @ rows_RD
        second_DD += moments_DD / max(np.trace(moments_DD), np.finfo(np.float64).tiny)
    return np.ascontiguousarray(np.linalg.eigh(second_DD)[1][:, ::-1].T)


def _blocks(matrix: Float32) -> Iterator[Float64]:
    for start in range(0, len(matrix), BLOCK_ROWS):
        yield matrix[start : start + BLOCK_ROWS].astype(np.float64)


def encode(softmax: Softmax, rotation_DD: Float64, widths: Widths) -> dict[str, np.ndarray]:
    """The `sketch` part of these widths: what `Part` SKETCH of heads/certified.py lists."""
    V, D = softmax.vocab_size, softmax.dim
    basis_MD = rotation_DD[: min(D, widths.fine - EXTRA)].astype(np.float32)
    P_MD, M = basis_MD.astype(np.float64), len(basis_MD)
    F, groups = min(M, widths.coarse), -(-V // LANES)
    coarse_VF = np.full((groups * LANES, widths.coarse), MOST + 1, np.uint8)
    scales_V, rests_V = np.zeros((2, groups * LANES), np.float32)  # of no row: all bounds zero
    fine_VT = np.full((V, widths.fine), MOST + 1, np.uint8)
    extras_V2 = fine_VT[:, -EXTRA:].view(np.float32)
    limits = np.zeros(5)
    limits[0] = np.linalg.norm(np.eye(M) - P_MD @ P_MD.T) * ROUNDED + 1e-12
    for number, rows_RD in enumerate(_blocks(softmax.weight)):
        here = slice(number * BLOCK_ROWS, number * BLOCK_ROWS + len(rows_RD))
        a_RM, norms_R = rows_RD @ P_MD.T, np.linalg.norm(rows_RD, axis=1)
        coarse, fine = _encode_rows(a_RM[:, :F], norms_R), _encode_rows(a_RM, norms_R)
        coarse_VF[here, :F], scales_V[here] = coarse.codes, coarse.scales
        rests_V[here] = _rounded_up(rows_RD - a_RM[:, :F] @ P_MD[:F], norms_R)
        fine_VT[here, :M], extras_V2[here, 0] = fine.codes, fine.scales
        extras_V2[here, 1] = _rounded_up(rows_RD - a_RM @ P_MD, norms_R)
        limits[1:] = np.maximum(limits[1:], [*coarse[2:], *fine[2:]])
    limits[1:] *= ROUNDED
    quads = coarse_VF.reshape(groups, LANES, widths.coarse // 4, 4).transpose(0, 2, 1, 3)
    extras = [values_V.reshape(groups, LANES).view(np.uint8) for values_V in (scales_V, rests_V)]
    coarse_GS = np.concatenate([quads.reshape(groups, -1), *extras], axis=1)
    return {"basis": basis_MD, "coarse": coarse_GS, "fine": fine_VT, "limits": limits}


def _encode_rows(a_Rm: Float64, norms_R: Float64) -> _Codes:
    """Codes of the coordinates; errors are those of the codes as stored."""
    most_R = np.abs(a_Rm).max(axis=1, initial=0.0) / MOST
    scales_R = np.maximum(np.maximum(most_R, SHARE * norms_R), LEAST_SCALE).astype(np.float32)
    steps_R = scales_R.astype(np.float64)
    whole_Rm = np.clip(np.rint(a_Rm / steps_R[:, None]), -MOST, MOST)
    errors_R = np.linalg.norm(a_Rm - whole_Rm * steps_R[:, None], axis=1) + 1e-12 * norms_R
    lengths_R = np.linalg.norm(a_Rm, axis=1) + 1e-12 * norms_R
    codes_Rm = (whole_Rm + (MOST + 1)).astype(np.uint8)
    return _Codes(
        codes_Rm, scales_R, float((errors_R / steps_R).max()), float((lengths_R / steps_R).max())
    )


def _rounded_up(left_RD: Float64, norms_R: Float64) -> Float32:
    """Norms of what is left of each row, in float32 and not below the true ones."""
    exact_R = np.linalg.norm(left_RD, axis=1) * ROUNDED + 1e-12 * norms_R
    return np.asarray(np.nextafter(exact_R.astype(np.float32), np.float32(np.inf)))
