"""Plans that draw, by float32 products or by a sketch, and the exact head's draws beside them."""

from __future__ import annotations

import numpy as np

from logitsieve.gpu.kernels.status import PASSED_ON
from logitsieve.gpu.matrix import sketch_on
from logitsieve.gpu.plans.certified_draws import CertifiedDrawPlan
from logitsieve.gpu.plans.draws import DeviceEdits, DrawInputs, DrawPlan
from logitsieve.heads import CertifiedHead, ExactHead, Softmax
from logitsieve.heads._base.draw_options import DrawOptions
from logitsieve.kernels.topk.merge import TOP, VALUE
from tests.gpu.plans.test_certified import sketched
from tests.gpu.softmaxes import on_gpu, tensor
from tests.synthetic import make_softmax

Edited = list[tuple[list[int], list[float]]]  # ids of each row, ascending, and their values
STEP = 7
MINUS = -np.inf


def seeds_of(rows: int) -> np.ndarray:
    return np.random.default_rng(rows).integers(0, 1 << 64, rows, np.uint64, endpoint=False)


def inputs_of(rows: int, scale: float, step: int) -> DrawInputs:
    seeds = tensor(seeds_of(rows).view(np.int64))
    return DrawInputs(tensor(np.array([scale])), seeds, tensor(np.array([step, 0])))


def csr(edited: Edited | None) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    if edited is None:
        return None
    offsets = np.cumsum([0, *(len(ids) for ids, _ in edited)])
    ids = np.array([i for ids, _ in edited for i in ids], np.int32)
    return offsets, ids, np.array([value for _, values in edited for value in values])


def edits_of(edited: Edited | None) -> DeviceEdits | None:
    arrays = csr(edited)
    return None if arrays is None else DeviceEdits(*map(tensor, arrays))


def draw_plan(
    softmax: Softmax,
    hidden: np.ndarray,
    draws: int,
    scale: float,
    edited: Edited | None = None,
    dtype: str = "float32",
    step: int = STEP,
) -> tuple[DrawPlan, Softmax]:
    """A plan, and the softmax as it is stored."""
    stored, matrix = on_gpu(softmax, dtype)
    inputs = inputs_of(len(hidden), scale, step)
    return DrawPlan(matrix, tensor(hidden), draws, inputs, edits_of(edited)), stored


def certified_draw_plan(
    softmax: Softmax,
    hidden: np.ndarray,
    draws: int,
    scale: float,
    edited: Edited | None = None,
    dtype: str = "float32",
    head: CertifiedHead | None = None,
) -> tuple[CertifiedDrawPlan, Softmax]:
    """The same by the codes of `head`, or of a sketch turned towards `hidden`."""
    if head is None:
        stored, matrix, sketch = sketched(softmax, np.nan_to_num(hidden), dtype)
    else:
        stored, matrix = on_gpu(softmax, dtype)
        sketch = sketch_on(matrix.weight.device, head._arrays)
    inputs = inputs_of(len(hidden), scale, STEP)
    plan = CertifiedDrawPlan(matrix, sketch, tensor(hidden), draws, inputs, edits_of(edited))
    return plan, stored


def exact_draws(
    stored: Softmax,
    hidden: np.ndarray,
    draws: int,
    scale: float,
    edited: Edited | None = None,
    step: int = STEP,
) -> tuple[np.ndarray, np.ndarray]:
    """Ids [B, draws] and log Z [B] of the exact head on the host."""
    edits = csr(edited)
    ids, log_z, _ = ExactHead(stored).draw(
        hidden, DrawOptions(draws, seeds_of(len(hidden)), step, scale, edits)
    )
    return ids, scale * log_z[:, TOP] + log_z[:, VALUE]


def assert_within(log_z: np.ndarray, truth: np.ndarray) -> None:
    """An estimate and bounds [B, 3], of which the truth [B] in float64 is between the last two."""
    value, low, high = log_z.T
    off = 1e-12 * np.abs(truth)  # the judge's own rounding
    assert (low <= truth + off).all()
    assert (truth - off <= high).all()
    assert (low <= value).all()
    assert (value <= high).all()


def passed_on(plan: CertifiedDrawPlan) -> list[bool]:
    return [state == int(PASSED_ON) for state in plan.coded.status.tolist()]


def twins_within_twice_the_slack() -> Softmax:
    """400 ids of which 200 are near others, in other groups, with logits nearly as large."""
    softmax = make_softmax(200, 17, scale=3.0)
    off = 1 + 1.5e-5 * np.random.default_rng(2).standard_normal((200, 1))
    weight = np.concatenate([softmax.weight, softmax.weight * off]).astype(np.float32)
    return Softmax(weight, np.tile(softmax.bias, 2))


def edited_rows(softmax: Softmax, hidden: np.ndarray) -> Edited:
    """Edits of six rows of a V of 333: none, the best ids, ends of groups, two of three ids."""
    best = np.argsort(-(hidden @ softmax.weight.T + softmax.bias))
    return [
        ([], []),
        ([int(best[1, 0])], [MINUS]),
        (sorted(best[2, :5].tolist()), [MINUS, 1.5, MINUS, 2.5, 20.0]),
        (list(range(16, 64)), [MINUS] * 48),
        ([0, 1, 15, 16, 331, 332], [3.0, MINUS, 30.0, 30.0, MINUS, 29.0]),
        ([i for i in range(333) if i % 3], [MINUS] * 222),
    ]


def edited_far(value: float) -> Edited:
    """Edits of four rows of a V of 70 to about `value`, far beyond any logit."""
    others = [i for i in range(70) if i not in (3, 40, 41)]
    return [
        ([3, 40, 41], [value, value, MINUS]),
        (others, [MINUS] * 67),
        (list(range(70)), [value if i in (3, 40) else MINUS for i in range(70)]),
        (list(range(70)), [value * (1 - 1e-9 * i) for i in range(70)]),
    ]
