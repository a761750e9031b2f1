"""The bound of every row of W, as a plan's kernels compute it: what no logit may exceed."""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

from logitsieve.api.results import Float64
from logitsieve.gpu.kernels.bounds import tile_bounds
from logitsieve.gpu.kernels.encode_query import MARGIN
from logitsieve.gpu.plans.certified import CertifiedPlan


@triton.jit
def uppers_kernel(
    codes, scales, rests, bias, planes, factors, estimates, uppers, B, V,
    WIDTH: tl.constexpr, BLOCK_V: tl.constexpr, BLOCK_B: tl.constexpr,
):  # fmt: skip
    """estimates and uppers [B, V]; programs are (tiles, blocks of rows)."""
    ids = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    rows = tl.program_id(1) * BLOCK_B + tl.arange(0, BLOCK_B)
    near, above = tile_bounds(codes, scales, rests, bias, planes, factors, ids, rows, B, V, WIDTH)
    places, mask = rows[None, :] * V + ids[:, None], (ids < V)[:, None] & (rows < B)[None, :]
    tl.store(estimates + places, near, mask=mask)
    tl.store(uppers + places, above, mask=mask)


def bounds_of(plan: CertifiedPlan, block_b: int) -> tuple[Float64, Float64, Float64]:
    """(lowers, uppers, margins) in float64 [B, V], [B, V], [B, 1] of a plan that has run.

    `block_b` rows are bounded at once: with 1 the sums of codes take another way.
    """
    rows, vocab_size = len(plan.hidden), plan.matrix.rows
    estimates, uppers = torch.empty((2, rows, vocab_size), device=plan.hidden.device)
    uppers_kernel[(triton.cdiv(vocab_size, 128), triton.cdiv(rows, block_b))](
        plan.sketch.codes, plan.sketch.scales, plan.sketch.rests, plan.matrix.bias,
        plan.coded.planes, plan.coded.factors, estimates, uppers, rows, vocab_size,
        WIDTH=plan.sketch.width, BLOCK_V=128, BLOCK_B=block_b,
    )  # fmt: skip
    near, above = (bound.cpu().numpy().astype(np.float64) for bound in (estimates, uppers))
    return 2 * near - above, above, plan.coded.factors[:, int(MARGIN), None].cpu().numpy()
