"""Which lists a row's candidates come from: those of the clusters whose centroids suit it best.

float32 scores choose, dot64 decides: a score is within `slack` of the exact dot, so what is more
than twice slack below the P-th best score is not among the P best clusters, and only the few others
are evaluated. Equal dots go to the lower cluster.

Shape letters: B rows of hidden, D hidden size, C clusters, P probes.
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.check_finite import LARGEST, admissible
from logitsieve.gpu.kernels.exact_logits_lists import listed_before
from logitsieve.gpu.kernels.rank import k_best
from logitsieve.gpu.kernels.rows import dot64, norm_of, ordered64
from logitsieve.gpu.kernels.scan import tile_logits
from logitsieve.gpu.kernels.status import PASSED_ON, REFUSED, WANTED

NOBODY = tl.constexpr(0x7FFFFFFF)  # a cluster that there is not


@triton.jit
def route_kernel(
    centroids, zeros, slacks, norms, least, offsets, ids, hidden, limits,
    scores, near, dots, routes, starts, counts, status, C, D, k, steps,
    P: tl.constexpr, CLUSTERS: tl.constexpr,
    SCORED: tl.constexpr, ESCALATE: tl.constexpr,
):  # fmt: skip
    """routes and starts [B, P], counts [B] and status [B] WANTED, REFUSED or PASSED_ON.

    A row's candidates are the lists of its routes one after the other; the p-th begins at
    starts[p], and counts is the length of all. PASSED_ON are rows with fewer than k distinct ones
    and, if ESCALATE, those whose dot with the best centroid is below `least` ||h|| norms[c].

    `limits` and `slacks` are those of W and of the centroids (matrix.py). scores [B, C] float32 are
    given if SCORED, else made here; near [B, C] int32 and dots [B, C] float64 are scratch. CLUSTERS
    is a power of two, C or more; 2^steps is more than the ids of any list.
    """
    row = tl.program_id(0).to(tl.int64)
    h = hidden + row * D
    norm = _norm64(h, D) if ESCALATE else norm_of(h, D)
    if admissible(norm, limits):
        own, close = scores + row * C, near + row * C
        if not SCORED:
            _score(centroids, zeros, h, own, C, D)
        count = _list_near(own, slacks, norm, close, C, P, CLUSTERS)
        tl.debug_barrier()
        # No more than P need no dots: all of them are chosen, whatever dots may hold.
        undecided = count if ESCALATE else tl.where(count > P, count, 0)
        _decide(centroids, h, close, dots + row * C, undecided, D)
        place = tl.arange(0, CLUSTERS)
        inside = place < count
        clusters = tl.load(close + place, mask=inside, other=NOBODY)
        found = tl.load(dots + row * C + place, mask=inside, other=float("-inf"))
        chosen = k_best(ordered64(found), clusters, inside, P)
        probe = tl.cumsum(chosen.to(tl.int32), 0) - 1
        first = tl.load(offsets + clusters, mask=chosen, other=0)
        lengths = tl.load(offsets + clusters + 1, mask=chosen, other=0) - first
        tl.store(routes + row * P + probe, clusters, mask=chosen)
        tl.store(starts + row * P + probe, tl.cumsum(lengths, 0) - lengths, mask=chosen)
        distinct, total = tl.max(lengths, 0), tl.sum(lengths, 0)  # no id is in one list twice
        tl.store(counts + row, total)
        if (distinct < k) & (total >= k):
            tl.debug_barrier()
            distinct = _distinct(offsets, ids, routes + row * P, steps, P)
        state = tl.where(distinct < k, PASSED_ON, WANTED)
        if ESCALATE:
            most = tl.max(found, 0)
            best = tl.min(tl.where(found == most, clusters, NOBODY), 0)
            far = most < tl.load(least) * (norm * tl.load(norms + best))
            state = tl.where(far, PASSED_ON, state)
        tl.store(status + row, state)
    else:
        tl.store(counts + row, 0)
        tl.store(status + row, REFUSED)


@triton.jit
def _norm64(h, D):
    """||h|| as simd/dots.py sums it: what is compared with it is decided by the last bit."""
    one = tl.arange(0, 1)
    return tl.sqrt(tl.sum(dot64(h, one, one == 0, h, D), 0))


@triton.jit
def _score(centroids, zeros, h, scores, C, D):
    """float32 dots of one row with all centroids."""
    row = tl.arange(0, 1)
    for start in range(0, C, 64):
        clusters = start + tl.arange(0, 64)
        found = tile_logits(centroids, zeros, h, clusters, row, 1, C, D, 128)
        tl.store(scores + clusters[:, None] + row[None, :], found, mask=(clusters < C)[:, None])
    tl.debug_barrier()


@triton.jit
def _list_near(scores, slacks, norm, near, C, P: tl.constexpr, CLUSTERS: tl.constexpr):
    """Write to `near` the clusters that may be among the P best, ids rising; how many there are."""
    place = tl.arange(0, CLUSTERS)
    found = tl.load(scores + place, mask=place < C, other=float("-inf"))
    rest, reach = found, tl.max(found, 0)
    for _ in range(P - 1):
        # All that are equal leave at once, so that this is at most the P-th largest.
        rest = tl.where(rest < reach, rest, float("-inf"))
        reach = tl.max(rest, 0)
    slack = (norm * tl.load(slacks + 2) + tl.load(slacks + 3)).to(tl.float32) * 1.0001
    cut = reach - 2.0 * slack - 2.4e-7 * tl.abs(reach)  # and what this line itself rounds
    exact = norm * tl.load(slacks) <= LARGEST  # or float32 may have overflowed
    close = (place < C) & tl.where(exact, found >= cut, True)
    tl.store(near + tl.cumsum(close.to(tl.int32), 0) - 1, place, mask=close)
    return tl.sum(close.to(tl.int32), 0)


@triton.jit
def _decide(centroids, h, near, dots, count, D):
    """Exact dots of the clusters that are near."""
    for start in range(0, count, 16):
        place = start + tl.arange(0, 16)
        clusters = tl.load(near + place, mask=place < count, other=0)
        found = dot64(centroids, clusters, place < count, h, D)
        tl.store(dots + place, found, mask=place < count)
    tl.debug_barrier()


@triton.jit
def _distinct(offsets, ids, routes, steps, P: tl.constexpr):
    """How many different ids one row's lists hold."""
    distinct = 0
    for p in range(P):
        cluster = tl.load(routes + p)
        last = tl.load(offsets + cluster + 1)
        for start in range(tl.load(offsets + cluster), last, 128):
            place = start + tl.arange(0, 128)
            owners = tl.load(ids + place, mask=place < last, other=NOBODY)
            before = listed_before(offsets, ids, routes, p, owners, steps, P)
            distinct += tl.sum(tl.where(before, 0, (place < last).to(tl.int32)), 0)
    return distinct
