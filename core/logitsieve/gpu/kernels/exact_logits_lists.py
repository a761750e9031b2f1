"""Exact logits of the ids of the lists that rows were routed to.

A row's candidates are written one list after the other. An id that an earlier list of the row has
is written as nobody's, with a logit of -inf. The ids of a list rise: they are found by halving.

Shape letters: B rows of hidden, D hidden size, C clusters, P probes, N ids of a tile, L candidates
of a row at most. A route is a place in routes [B, P].
"""

from __future__ import annotations

import triton
import triton.language as tl

from logitsieve.gpu.kernels.rows import LANES, dot64, pair_sum, widened
from logitsieve.gpu.kernels.status import WANTED

NOBODY = tl.constexpr(0x7FFFFFFF)  # an id that none has


@triton.jit
def lists_kernel(
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
            owners = tl.load(ids + place, mask=place < last, other=NOBODY)
            row = (route // P).to(tl.int64)
            found = dot64(weight, owners, place < last, hidden + row * D, D)
            found += tl.load(bias + owners, mask=place < last, other=0.0).to(tl.float64)
            _keep(
                found, owners, place - first, offsets, ids, routes, starts, values, named, route, L,
                steps, P,
            )  # fmt: skip


@triton.jit
def shared_lists_kernel(
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
    owners = tl.load(ids + place, mask=place < last, other=NOBODY)
    added = tl.load(bias + owners, mask=place < last, other=0.0).to(tl.float64)
    fours = count // 4 * 4
    for i in range(0, fours, 4):
        r, s = _route_at(own, turn, route, i), _route_at(own, turn, route, i + 1)
        t, u = _route_at(own, turn, route, i + 2), _route_at(own, turn, route, i + 3)
        a, b, c, e = _dots64_4x1(
            weight, owners, place < last, hidden, r // P, s // P, t // P, u // P, D
        )
        _keep(
            a + added, owners, place - first, offsets, ids, routes, starts, values, named, r, L,
            steps, P,
        )  # fmt: skip
        _keep(
            b + added, owners, place - first, offsets, ids, routes, starts, values, named, s, L,
            steps, P,
        )  # fmt: skip
        _keep(
            c + added, owners, place - first, offsets, ids, routes, starts, values, named, t, L,
            steps, P,
        )  # fmt: skip
        _keep(
            e + added, owners, place - first, offsets, ids, routes, starts, values, named, u, L,
            steps, P,
        )  # fmt: skip
    for i in range(fours, count):
        r = _route_at(own, turn, route, i)
        row = (r // P).to(tl.int64)
        found = dot64(weight, owners, place < last, hidden + row * D, D)
        _keep(
            found + added, owners, place - first, offsets, ids, routes, starts, values, named, r, L,
            steps, P,
        )  # fmt: skip


@triton.jit
def _route_at(own, turn, route, i):
    """The i-th of the routes that are `own`."""
    return tl.sum(tl.where(own & (turn == i), route, 0), 0)


@triton.jit
def _dots64_4x1(weight, ids, inside, hidden, row_a, row_b, row_c, row_e, D):
    """Four times dot64 of rows.py, for four rows of hidden that share every load of W."""
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
def _keep(
    found, owners, place, offsets, ids, routes, starts, values, named, route, L, steps,
    P: tl.constexpr,
):  # fmt: skip
    """Write the logits of a tile for one route to its list, where `place` [N] is in the list."""
    row, inside, names = (route // P).to(tl.int64), owners != NOBODY, owners
    if P > 1:
        before = listed_before(offsets, ids, routes + row * P, route % P, owners, steps, P)
        found = tl.where(before, float("-inf"), found)
        names = tl.where(before, NOBODY, owners)
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
            less = tl.load(ids + middle, mask=low < high, other=NOBODY) < owners
            low = tl.where(less, middle + 1, low)
            high = tl.where(less, high, middle)
        same = tl.load(ids + low, mask=low < last, other=-1) == owners
        found = found | same.to(tl.int32)
    return found > 0
