"""The sieve: bound every row by the sketch, compute only rows that may be among the best.

For each query, the rows with the best estimates in the first groups are computed; the k-th best
exact logit is the threshold. Then rows with a bound that reaches it are computed.
"""

from collections import namedtuple

import numpy as np

from logitsieve.kernels.compile import inline, inline_once
from logitsieve.kernels.sampling.floors import raise_floor
from logitsieve.kernels.simd.amx import AMX
from logitsieve.kernels.simd.dots import pad_lanes, row_of
from logitsieve.kernels.simd.exponential import exp_lanes
from logitsieve.kernels.simd.lanes import (
    LANES,
    load,
    multiply_add,
    pair_sum,
    smaller,
    store,
    widen,
    zeros32,
)
from logitsieve.kernels.simd.masks import (
    EVERY_LANE,
    append_lanes,
    first_lanes,
    lanes_not_below,
    without,
)
from logitsieve.kernels.simd.pointers import (
    CACHE_LINE,
    as_float32,
    as_int32,
    as_int64,
    nowhere,
    shift,
    size_of,
)
from logitsieve.kernels.sketch.batch import TILE, add_query, batch_at, begin_batch, fill_sums
from logitsieve.kernels.sketch.batch_bounds import more_sums, pass_batch
from logitsieve.kernels.sketch.bounds import bound_four, store_bases, store_ends
from logitsieve.kernels.sketch.encode_query import (
    LENGTH,
    MARGIN,
    REST,
    coded_at,
    encode_query,
    factors_of,
    turn_rows,
)
from logitsieve.kernels.sketch.levels import (
    AHEAD,
    FOUR,
    LEVEL_COUNT,
    add_planes,
    coarse_level,
    coarse_size,
    codes_of,
    level_bounds,
    level_numbers,
    levels_of,
    prefetch_group,
)
from logitsieve.kernels.sketch.sketch import sketch_at
from logitsieve.kernels.sketch.thresholds import SEEDS, take_best, threshold_of
from logitsieve.kernels.topk.allowed import allowed_of, any_allowed, forbid, group_bits
from logitsieve.kernels.topk.descriptor import ROWS, SHARE, SHARES, matrix_at
from logitsieve.kernels.topk.queries import CHUNK, MOST, NORM, STATE, SUMMED, TOTAL, VARIANCE
from logitsieve.kernels.topk.scan import LISTED, scan_one

# Variances added to an estimate for a sum of e^logit: by level 0, by other levels (docs/sketch.md).
HALF, SHRINK = 0.5, -0.1875
NEGLIGIBLE = np.float32(-25)  # nats below the best row
FIRST = 32  # groups that give the threshold, or more
FIRST_ROWS = 8  # rows of these groups for each answer, or more
AT_MOST = CHUNK + (FOUR + 1) * LANES  # rows that wait to be computed

# A query's scratch: estimates and bounds of the first groups; ids of computed rows, then from BEGIN
# to END of rows to compute.
Sieved = namedtuple("Sieved", "coded estimates uppers ids counts end")
# A tile's scratch: the groups `left`; for each group a mask of the rows left, whether a level was
# `read`, `base_of`, and the sums of codes, estimates and bounds by the last level read.
Tile = namedtuple("Tile", "left masks read bases sums ends end")
# A query's pass over groups first .. last-1. Its next tile begins at `beyond`; the first `groups`
# gave the threshold; log Z is estimated if `summed`.
Pass = namedtuple(
    "Pass", "sketch sieved tile query batch q first last beyond groups threshold summed allowed"
)
BEGIN, END, DONE, READ = range(4)
COUNTS = READ + LEVEL_COUNT  # from READ on: groups read of each level

# Whether `ids` keeps all computed rows; numpy scalars, like scan.LISTED.
KEEP, FORGET = np.bool_(True), np.bool_(False)


@inline
def first_groups(descriptor, limit):
    """Return the number of groups that give the threshold; 0 if all logits should be computed."""
    groups = (descriptor[ROWS] + LANES - 1) // LANES
    count = max(FIRST, (FIRST_ROWS * limit + LANES - 1) // LANES)
    return 0 if 2 * FIRST_ROWS * limit > descriptor[ROWS] else min(groups, count)


@inline
def sieved_at(descriptor, start, groups, limit, keep):
    coded = coded_at(descriptor, start)
    estimates = as_float32(shift(coded.end, COUNTS))
    uppers = shift(estimates, groups * LANES)
    ids = max(2 * SEEDS * limit, AT_MOST) + (descriptor[ROWS] + AT_MOST if keep else 0)
    return Sieved(
        coded, estimates, uppers, as_int32(shift(uppers, groups * LANES)), coded.end,
        shift(coded.end, COUNTS + groups * LANES + (ids + 1) // 2),
    )  # fmt: skip


@inline
def _tile_at(start):
    masks, groups = as_int64(shift(start, TILE)), TILE + FOUR
    bases = shift(start, 3 * groups)
    sums, ends = shift(bases, LANES * groups), shift(bases, LANES * groups * 3 // 2)
    return Tile(
        as_int64(start), masks, shift(masks, groups), as_float32(bases), as_float32(sums),
        as_float32(ends), shift(ends, LANES * groups),
    )  # fmt: skip


@inline
def sieved_of(descriptor, start, q, groups, limit, keep):
    first = _tile_at(start).end
    stride = size_of(sieved_at(descriptor, nowhere(), groups, limit, keep))
    return sieved_at(descriptor, row_of(first, q, stride), groups, limit, keep)


@inline
def sieving_size(descriptor, count, groups, limit, keep):
    return size_of(_batch_of(descriptor, nowhere(), groups, count, limit, keep)) + CACHE_LINE // 8


@inline
def _batch_of(descriptor, start, groups, count, limit, keep):
    last = sieved_of(descriptor, start, count - 1, groups, limit, keep)
    return batch_at(descriptor, last.end, count)


@inline
def sieve(descriptor, queries, start, groups, count, keep, noise):
    """Offer to each query every row that may be among its best; `start` is scratch of all.

    Shares take turns by tiles, so that each has rows that are often among the best. Every share
    computes the best of the first groups for a threshold; only share 0 goes on with these groups.

    `if AMX` stands alone because Numba then drops its block if AMX is False.
    """
    sketch, first, last, limit = sketch_at(descriptor), np.int64(0), groups, queries.limit
    ahead, step = descriptor[SHARE] * TILE, descriptor[SHARES] * TILE
    stride = size_of(sieved_at(descriptor, nowhere(), groups, limit, keep))
    batch = _batch_of(descriptor, start, groups, count, limit, keep)
    begin_batch(descriptor, batch, count)
    turn_rows(descriptor, queries.hidden, count, _tile_at(start).end, stride)
    while first < sketch.groups:
        filled = batch.used and first > 0
        if AMX:  # noqa: SIM102
            if filled:
                fill_sums(sketch, batch, first, last, step)
        for q in range(count):
            sieved = sieved_of(descriptor, start, q, groups, limit, keep)
            if first == 0:
                encode_query(descriptor, queries.states[STATE * q + NORM], sieved.coded, limit)
                if AMX:  # noqa: SIM102
                    if batch.used:
                        add_query(descriptor, batch, q, sieved.coded)
                _sieve_first(descriptor, sieved, queries, q, groups, keep)
                raise_floor(queries, q, noise)
                if descriptor[SHARE] > 0:
                    queries.states[STATE * q + TOTAL] = 0.0
                    continue
            settles = last == groups or first + step >= sketch.groups
            tile, begin = _tile_at(start), first
            while begin < last:
                end = min(begin + TILE, last)
                _sieve_tile(
                    descriptor, sieved, tile, queries, q, begin, end, first + step, groups,
                    settles and end == last, keep, noise, batch, filled,
                )  # fmt: skip
                begin = end
        first = last + ahead if first == 0 else first + step
        last = min(first + TILE, sketch.groups)


@inline_once
def _sieve_first(descriptor, sieved, queries, q, groups, keep):
    sketch, query = sketch_at(descriptor), factors_of(sieved.coded.factors)
    estimates, uppers, limit = sieved.estimates, sieved.uppers, queries.limit
    for group in range(0, groups, FOUR):
        bound_four(sketch, sieved.coded.planes, query, group, groups, estimates, uppers)
    forbid(allowed_of(queries.allowed, q), 0, groups * LANES, estimates)
    forbid(allowed_of(queries.allowed, q), 0, groups * LANES, uppers)
    rows = min(groups * LANES, sketch.rows)
    seeds = take_best(estimates, uppers, rows, limit, sieved.ids)
    sieved.counts[BEGIN], sieved.counts[DONE] = seeds if keep else 0, seeds
    sieved.counts[END] = sieved.counts[BEGIN]
    for level in range(LEVEL_COUNT):
        sieved.counts[READ + level] = 0
    scan_one(matrix_at(descriptor, 0), LISTED, sieved.ids, np.int64(0), seeds, queries, q)


@inline_once
def _sieve_tile(
    descriptor, sieved, tile, queries, q, first, last, beyond, groups, settles, keep, noise, batch,
    filled,
):  # fmt: skip
    """Bound a tile's rows by one level after another, each for groups with rows left."""
    sketch, query = sketch_at(descriptor), factors_of(sieved.coded.factors)
    threshold, state = _threshold(sieved, queries, q), shift(queries.states, STATE * q)
    (one, two, level), summed = levels_of(sketch, query), state[SUMMED] != 0.0
    own = Pass(
        sketch, sieved, tile, query, batch, q, first, last, beyond, groups, threshold, summed,
        allowed_of(queries.allowed, q),
    )  # fmt: skip
    done, zeroth, once, count = 0, np.int64(0), np.int64(0), np.int64(0)
    if AMX:  # noqa: SIM102
        if filled:
            done, zeroth, once, count = pass_batch(own)
    if not filled:
        zeroth = _pass_lengths(own, one)
    ahead = q == 0 and beyond + TILE <= sketch.groups
    if done < 1:
        zero = coarse_level(sketch, coarse_size(sketch) if ahead else 0)
        once = _pass_level(own, one, two, zero, zeroth, 0)
    if done < 2:
        count = _pass_level(own, two, level, coarse_level(sketch, 0), once, 1)
    _count(sieved, batch, 0, zeroth)
    _count(sieved, batch, 1, once)
    _count(sieved, batch, 2, count)
    end = int(sieved.counts[END])
    for i in range(count):
        group = tile.left[i]
        slot = group - first
        sums = load(tile.sums, LANES * slot)
        if AMX and batch.ready[2] != 0:
            sums = more_sums(batch, level, q, 2, slot, sums)
        else:
            later = codes_of(level, tile.left[min(i + AHEAD, count - 1)])
            sums = add_planes(sketch, level, sieved.coded.tables, sums, group, later)
        estimate, upper = _refine(own, level, group, slot, sums)
        mask = tile.masks[slot] & lanes_not_below(upper, threshold)
        mask = first_lanes(mask, sketch.rows - group * LANES)
        tile.masks[slot] = mask
        end = append_lanes(sieved.ids, end, mask, group * LANES)
        rises = mask & lanes_not_below(estimate, threshold) != 0
        if end - int(sieved.counts[BEGIN]) >= CHUNK or rises:
            end = _settle(descriptor, sieved, queries, q, end, keep)
            raise_floor(queries, q, noise)
            threshold = _threshold(sieved, queries, q)
    if summed:
        _sum_tile(own, state)
    if settles:
        end = _settle(descriptor, sieved, queries, q, end, keep)
        raise_floor(queries, q, noise)
    sieved.counts[END] = end


@inline
def _count(sieved, batch, place, count):
    sieved.counts[READ + place] += count
    batch.asked[place] += count


@inline
def _pass_lengths(own, after):
    """Bound a tile by level 0; return how many groups have rows left."""
    sieved, tile, first, last, threshold = own.sieved, own.tile, own.first, own.last, own.threshold
    count = np.int64(0)
    for four in range(first, last, FOUR):
        if not any_allowed(own.allowed, four * LANES, min(four + FOUR, last) * LANES):
            continue
        reached = store_bases(
            own.sketch, sieved.coded, own.query, four, last, threshold, own.summed, tile,
            four - first,
        )  # fmt: skip
        for group in range(four, min(four + FOUR, last) if reached or own.summed else four):
            mask, slot = reached >> LANES * (group - four), group - first
            mask &= group_bits(own.allowed, group)
            if group < own.groups:  # bounds of computed rows are -inf
                mask &= lanes_not_below(load(sieved.uppers, group * LANES), threshold)
            tile.masks[slot], tile.read[slot], tile.left[count] = mask, mask, group
            if mask != 0:
                if count < AHEAD:
                    prefetch_group(after, group)
                count += 1
    return count


@inline
def _pass_level(own, level, after, zero, count, place):
    """Bound the groups that are left by a level; return how many still are.

    Groups AHEAD are prefetched, also of the level `after`, and level `zero` of the next tile.
    """
    sketch, tile, kept = own.sketch, own.tile, np.int64(0)
    for i in range(count):
        group = tile.left[i]
        later = codes_of(level, tile.left[min(i + AHEAD, count - 1)])
        if i + AHEAD >= count:  # the next level reads these first
            later = codes_of(after, tile.left[min(i + AHEAD - count, kept)])
        slot = group - own.first
        prefetch_group(zero, own.beyond + i)
        sums = zeros32() if place == 0 else load(tile.sums, LANES * slot)
        sums = add_planes(sketch, level, own.sieved.coded.tables, sums, group, later)
        _, upper = _refine(own, level, group, slot, sums)
        mask = tile.masks[slot] & lanes_not_below(upper, own.threshold)
        tile.masks[slot], tile.left[kept] = mask, group
        kept += mask != 0
    return kept


@inline
def _refine(own, level, group, slot, sums):
    tile = own.tile
    base = load(tile.bases, 2 * LANES * slot), load(tile.bases, 2 * LANES * slot + LANES)
    numbers = level_numbers(own.sketch, level, group)
    estimate, upper = level_bounds(level, own.query, sums, base, numbers)
    store(tile.sums, LANES * slot, sums)
    if own.summed:
        store_ends(tile, slot, estimate, upper)
    return estimate, upper


@inline
def _sum_tile(own, state):
    """Add estimates of e^{scale logit} of allowed rows that were dropped, by the last level."""
    sketch, sieved, tile, total, variance = own.sketch, own.sieved, own.tile, zeros32(), zeros32()
    length, deviation = _deviations(sketch, sieved.coded.factors)
    for group in range(own.first, own.last):
        slot, out = group - own.first, EVERY_LANE & ~group_bits(own.allowed, group)
        if out == EVERY_LANE:
            continue
        out |= tile.masks[slot]
        bounds = load(tile.ends, 2 * LANES * slot), load(tile.ends, 2 * LANES * slot + LANES)
        known, half = (deviation, SHRINK) if tile.read[slot] != 0 else (length, HALF)
        added = _estimated(sketch, sieved, group, own.groups, bounds, known, half, state)
        total += without(out, added[0])
        variance += without(out, added[1])
    state[TOTAL] += pair_sum(widen(total))
    state[VARIANCE] += pair_sum(widen(variance))


@inline
def _deviations(sketch, factors):
    """Return the standard deviation of x.y over its bound: by level 0, by other levels."""
    length = 1.0 / np.sqrt(max(1.0, float(sketch.tail_width)))
    return np.float32(length), np.float32(length * factors[LENGTH] / factors[REST])


@inline
def _estimated(sketch, sieved, group, groups, bounds, deviation, half, state):
    """Return estimates of e^{scale (logit - MOST)} of a group, and these times the variances.

    docs/sketch.md explains the variance added, `half`. Negligible estimates are 0.
    """
    scale = np.float32(state[SUMMED])
    off = (bounds[1] - bounds[0]) * deviation
    variance, estimate = off * off, bounds[0]
    if group < groups:
        estimate = smaller(estimate, load(sieved.uppers, group * LANES))
    logits = multiply_add(variance, np.float32(half * state[SUMMED]), estimate)
    logits = smaller(logits, bounds[1])
    most = np.float32(-state[SUMMED] * state[MOST])
    exponents = smaller(multiply_add(logits, scale, most), zeros32())
    if lanes_not_below(exponents, NEGLIGIBLE) == 0:
        return zeros32(), zeros32()
    if sketch.rows - group * LANES < LANES:
        scratch = sieved.coded.rotated
        store(scratch, 0, exponents)
        pad_lanes(scratch, sketch.rows - group * LANES)
        exponents = load(scratch, 0)
    weights = exp_lanes(exponents)
    return weights, weights * variance


@inline
def _threshold(sieved, queries, q):
    return threshold_of(queries, q, sieved.coded.factors[MARGIN])


@inline_once
def _settle(descriptor, sieved, queries, q, end, keep):
    """Compute the rows that wait; return the place for more."""
    begin = int(sieved.counts[BEGIN])
    scan_one(matrix_at(descriptor, 0), LISTED, sieved.ids, begin, end, queries, q)
    sieved.counts[DONE] += end - begin
    sieved.counts[BEGIN] = end if keep else 0
    return int(sieved.counts[BEGIN])
