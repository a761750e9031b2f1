"""The candidate lists that a row is routed to, and the exact logits of their ids.

float32 scores choose among centroids, dot64 decides: a score is within `slack` of the exact dot, so
what is more than twice slack below the P-th best score is not among the P best clusters, and only
the few others are evaluated. Equal dots go to the lower cluster.

A row's candidates are written one list after the other. An id that an earlier list of the row has
is written as NO_ID, with a logit of -inf. The ids of a list rise: they are found by halving.

Shape letters: B rows of hidden, D hidden size, C clusters, P probes, N ids of a tile, L candidates
of a row at most. A route is a place in routes [B, P].
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.dots import LANES, dot64, norm_of, pair_sum, widened
from logitsieve.gpu.kernels.scan import REACH_SPARE, SLACK_SPARE, tile_logits
from logitsieve.gpu.kernels.status import LARGEST, NO_ID, PASSED_ON, REFUSED, WANTED, admissible
from logitsieve.gpu.kernels.topk import k_best, ordered64


@triton.jit
def route_logits_kernel(
    weight, bias, hidden, offsets, ids, routes, starts, status, values, named, D, L, steps,
    P: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """values float64 and named int32 [B, L] of rows WANTED; programs are (routes, tiles).

    2^steps is more than the ids of any list.
    """
    route = tl.program_id(0)
    if tl.load(status + route // P) == WANTED:
        cluster = tl.load(routes + route)
        first, last = tl.load(offsets + cluster), tl.load(offsets + cluster + 1)
        begin = first + tl.program_id(1) * TILE
        if begin < last:
            place = begin + tl.arange(0, TILE)
            owners = tl.load(ids + place, mask=place < last, other=NO_ID)
            row = (route // P).to(tl.int64)
            found = dot64(weight, owners, place < last, hidden + row * D, D)
            found += tl.load(bias + owners, mask=place < last, other=0.0).to(tl.float64)
            lists = offsets, ids, routes, starts, values, named
            _store_route(found, owners, place - first, lists, route, L, steps, P)


@triton.jit
def shared_route_logits_kernel(
    weight, bias, hidden, offsets, ids, routes, starts, status, values, named, tiles,
    B, D, L, steps, P: tl.constexpr, TILE: tl.constexpr, ROUTES: tl.constexpr,
):  # fmt: skip
    """The same for programs (tiles, blocks of ROUTES), four routes to a tile's list at a time.

    tiles [T, 2] int32 are a cluster and where in `ids` a tile of its list begins.
    """
    tile = tl.program_id(0)
    cluster, begin = tl.load(tiles + tile * 2), tl.load(tiles + tile * 2 + 1)
    route = tl.program_id(1) * ROUTES + tl.arange(0, ROUTES)
    wanted = tl.load(status + route // P, mask=route < B * P, other=-1) == WANTED
    own = wanted & (tl.load(routes + route, mask=route < B * P, other=-1) == cluster)
    turn, count = tl.cumsum(own.to(tl.int32), 0) - 1, tl.sum(own.to(tl.int32), 0)
    first, last = tl.load(offsets + cluster), tl.load(offsets + cluster + 1)
    place = begin + tl.arange(0, TILE)
    owners = tl.load(ids + place, mask=place < last, other=NO_ID)
    added = tl.load(bias + owners, mask=place < last, other=0.0).to(tl.float64)
    fours, lists = count // 4 * 4, (offsets, ids, routes, starts, values, named)
    for i in range(0, fours, 4):
        r, s = _route_at(own, turn, route, i), _route_at(own, turn, route, i + 1)
        t, u = _route_at(own, turn, route, i + 2), _route_at(own, turn, route, i + 3)
        a, b, c, e = _dots64_4x1(
            weight, owners, place < last, hidden, r // P, s // P, t // P, u // P, D
        )
        _store_route(a + added, owners, place - first, lists, r, L, steps, P)
        _store_route(b + added, owners, place - first, lists, s, L, steps, P)
        _store_route(c + added, owners, place - first, lists, t, L, steps, P)
        _store_route(e + added, owners, place - first, lists, u, L, steps, P)
    for i in range(fours, count):
        r = _route_at(own, turn, route, i)
        row = (r // P).to(tl.int64)
        found = dot64(weight, owners, place < last, hidden + row * D, D)
        _store_route(found + added, owners, place - first, lists, r, L, steps, P)


@triton.jit
def _route_at(own, turn, route, i):
    """The i-th of the routes that are `own`."""
    return tl.sum(tl.where(own & (turn == i), route, 0), 0)


@triton.jit
def _dots64_4x1(weight, ids, inside, hidden, row_a, row_b, row_c, row_e, D):
    """Four times dot64 of dots.py, for four rows of hidden that share every load of W."""
    lane = tl.arange(0, LANES)
    a = tl.zeros([ids.shape[0], LANES], tl.float64)
    b, c, e = a, a, a
    starts = weight + ids.to(tl.int64)[:, None] * D
    for d in tl.range(0, D, LANES, loop_unroll_factor=4):
        within = d + lane < D
        mask = inside[:, None] & within[None, :]
        w = widened(tl.load(starts + (d + lane)[None, :], mask=mask, other=0)).to(tl.float64)
        a += w * _lanes64(hidden, row_a, d + lane, within, D)
        b += w * _lanes64(hidden, row_b, d + lane, within, D)
        c += w * _lanes64(hidden, row_c, d + lane, within, D)
        e += w * _lanes64(hidden, row_e, d + lane, within, D)
    return pair_sum(a), pair_sum(b), pair_sum(c), pair_sum(e)


@triton.jit
def _lanes64(hidden, row, place, within, D):
    """[1, 16] of a row of hidden."""
    start = hidden + row.to(tl.int64) * D
    return tl.load(start + place, mask=within, other=0.0).to(tl.float64)[None, :]


@triton.jit
def _store_route(found, owners, place, lists, route, L, steps, P: tl.constexpr):
    """Write the logits of a tile for one route to its list, where `place` [N] is in the list."""
    offsets, ids, routes, starts, values, named = lists
    row, inside, names = (route // P).to(tl.int64), owners != NO_ID, owners
    if P > 1:
        before = listed_before(offsets, ids, routes + row * P, route % P, owners, steps, P)
        found = tl.where(before, float("-inf"), found)
        names = tl.where(before, NO_ID, owners)
    slots = row * L + tl.load(starts + route) + place
    tl.store(values + slots, found, mask=inside)
    tl.store(named + slots, names, mask=inside)


@triton.jit
def listed_before(offsets, ids, routes, probe, owners, steps, P: tl.constexpr):
    """[N] whether the lists of the first `probe` routes of a row have the ids `owners` [N]."""
    found = tl.zeros([owners.shape[0]], tl.int32)
    for p in range(P - 1):
        earlier = p < probe
        cluster = tl.load(routes + p, mask=earlier, other=0)
        first = tl.load(offsets + cluster, mask=earlier, other=0)
        last = tl.load(offsets + cluster + 1, mask=earlier, other=0)
        low, high = found * 0 + first, found * 0 + last
        for _ in range(steps):
            middle = (low + high) // 2
            less = tl.load(ids + middle, mask=low < high, other=NO_ID) < owners
            low = tl.where(less, middle + 1, low)
            high = tl.where(less, high, middle)
        same = tl.load(ids + low, mask=low < last, other=-1) == owners
        found = found | same.to(tl.int32)
    return found > 0


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
        count = _list_close(own, slacks, norm, close, C, P, CLUSTERS)
        tl.debug_barrier()
        # No more than P need no dots: all of them are chosen, whatever dots may hold.
        undecided = count if ESCALATE else tl.where(count > P, count, 0)
        _decide(centroids, h, close, dots + row * C, undecided, D)
        place = tl.arange(0, CLUSTERS)
        inside = place < count
        clusters = tl.load(close + place, mask=inside, other=NO_ID)
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
            best = tl.min(tl.where(found == most, clusters, NO_ID), 0)
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
def _list_close(scores, slacks, norm, near, C, P: tl.constexpr, CLUSTERS: tl.constexpr):
    """Write to `near` the clusters that may be among the P best, ids rising; how many there are."""
    place = tl.arange(0, CLUSTERS)
    found = tl.load(scores + place, mask=place < C, other=float("-inf"))
    rest, reach = found, tl.max(found, 0)
    for _ in range(P - 1):
        # All that are equal leave at once, so that this is at most the P-th largest.
        rest = tl.where(rest < reach, rest, float("-inf"))
        reach = tl.max(rest, 0)
    slack = (norm * tl.load(slacks + 2) + tl.load(slacks + 3)).to(tl.float32) * SLACK_SPARE
    cut = reach - 2.0 * slack - tl.abs(reach) * REACH_SPARE
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
    """The number of different ids that one row's lists hold."""
    distinct = 0
    for p in range(P):
        cluster = tl.load(routes + p)
        last = tl.load(offsets + cluster + 1)
        for start in range(tl.load(offsets + cluster), last, 128):
            place = start + tl.arange(0, 128)
            owners = tl.load(ids + place, mask=place < last, other=NO_ID)
            before = listed_before(offsets, ids, routes, p, owners, steps, P)
            distinct += tl.sum(tl.where(before, 0, (place < last).to(tl.int32)), 0)
    return distinct
