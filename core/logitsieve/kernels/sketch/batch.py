"""Sums of codes for all queries of a batch and a tile of groups at once, by AMX.

They equal the integers that bounds.py and levels.py find for one query. Level 0 is summed for every
group; another level for all groups of a tile, if enough queries asked for it in the tile before. A
query has two lines of an AMX tile for level 0 (high and low bytes of codes), one for another level.
"""

from collections import namedtuple

import numpy as np

from logitsieve.kernels.compile import inline, inline_once
from logitsieve.kernels.simd.amx import (
    AMX,
    CONFIGURED,
    LINE,
    LINE_BYTES_AT,
    LINES_AT,
    PALETTE,
    TILE_BYTES,
    clear_tile,
    configure_tiles,
    load_tile,
    multiply_tiles,
    release_tiles,
    spread_bit,
    spread_four_bits,
    spread_two_bits,
    store_tile,
)
from logitsieve.kernels.simd.dots import four_from, row_of
from logitsieve.kernels.simd.lanes import LANES, prefetch_second, store
from logitsieve.kernels.simd.pointers import (
    aligned,
    as_float32,
    as_int8,
    as_int32,
    as_int64,
    as_uint8,
    as_uint16,
    shift,
)
from logitsieve.kernels.simd.tables import CHUNK_BYTES
from logitsieve.kernels.sketch.encode_query import TAIL_TOTAL
from logitsieve.kernels.sketch.levels import (
    FIRST_SCALE,
    HEAD_SCALE,
    LEVEL_COUNT,
    NUMBER_COUNT,
    coarse_numbers,
    coarse_size,
    group_numbers,
    number_lanes,
    sizes_of,
)
from logitsieve.kernels.sketch.sketch import COARSE_WIDTH, MAY_USE_TILES, TAIL_WIDTH

TILE = 32  # groups that all queries bound while their codes are in the cache
LEAST = 2  # queries
# A level is summed if about so many queries asked for it; the first needs 1.5 more for each set.
LEAST_ASKING = 2
QUERIES = 16  # of an AMX tile
PAIRS = QUERIES // 2  # queries of an AMX tile of level 0
DOUBLES = TILE_BYTES // 8
AT_ONCE = 4  # groups: enough to hide the latency of a product
MEASURED = 16  # every 16th tile sums all levels that were asked for, to see what queries ask for
# The bits that are summed: those that a level adds to the one before, or all up to a level.
FIRST, MIDDLE, LAST, TO_MIDDLE, TO_LAST = range(5)
BEGINS = 3  # initial sums, for one, two and four bits

# AMX tiles: sums of four groups, codes of queries, rows.
SUMS = tuple(range(AT_ONCE))
CODES, ROWS, OTHER_ROWS = range(AT_ONCE, AT_ONCE + 3)
_load_codes, _load_rows, _load_other_rows = (load_tile(each) for each in (CODES, ROWS, OTHER_ROWS))
_load0, _load1, _load2, _load3 = (load_tile(each) for each in SUMS)
_clear0, _clear1, _clear2, _clear3 = (clear_tile(each) for each in SUMS)
_store0, _store1, _store2, _store3 = (store_tile(each) for each in SUMS)
_multiply0, _multiply2 = (multiply_tiles(each, CODES, ROWS) for each in SUMS[::2])
_multiply1, _multiply3 = (multiply_tiles(each, CODES, OTHER_ROWS) for each in SUMS[1::2])

# For each level, `ready` tells whether its sums are here, `asked` counts groups that queries asked
# for; the last of `ready` counts tiles. Queries are in `sets` of sixteen and, for level 0, `pairs`
# of eight. Codes take `wide` AMX tiles for level 0, `steps` for others.
Batch = namedtuple(
    "Batch",
    "used count sets pairs wide steps config begins codes coarse rows bases sums numbers ready "
    "asked end",
)


@inline
def batch_at(descriptor, start, count):
    """Return the scratch of a batch; `used` is False if each query sums its own codes."""
    wide = (descriptor[COARSE_WIDTH] + LINE - 1) // LINE
    steps = descriptor[TAIL_WIDTH] // LINE
    whole = descriptor[COARSE_WIDTH] <= LINE or descriptor[COARSE_WIDTH] % LINE == 0
    used = AMX and descriptor[MAY_USE_TILES] != 0 and count >= LEAST and whole and steps > 0
    sets = (count + QUERIES - 1) // QUERIES if used else 0
    pairs = (count + PAIRS - 1) // PAIRS if used else 0
    config = aligned(start)
    begins = shift(config, 2 * CONFIGURED // 8 if used else 0)
    codes = shift(begins, BEGINS * sets * DOUBLES)
    coarse = shift(codes, sets * steps * DOUBLES)
    rows = shift(coarse, pairs * wide * DOUBLES)
    bases = shift(rows, AT_ONCE * steps * DOUBLES if used else 0)
    sums = shift(bases, pairs * TILE * DOUBLES)
    numbers = shift(sums, LEVEL_COUNT * sets * TILE * DOUBLES)
    ready = shift(numbers, NUMBER_COUNT * TILE * LANES // 2 if used else 0)
    asked = shift(ready, LEVEL_COUNT + 1)
    return Batch(
        used, count, sets, pairs, wide, steps, as_uint8(config), as_uint8(begins), as_uint8(codes),
        as_uint8(coarse), as_uint8(rows), as_uint8(bases), as_uint8(sums), as_float32(numbers),
        as_int64(ready), as_int64(asked), shift(asked, LEVEL_COUNT),
    )  # fmt: skip


@inline
def begin_batch(descriptor, batch, count):
    for level in range(LEVEL_COUNT):
        batch.ready[level] = batch.asked[level] = 0
    batch.ready[LEVEL_COUNT] = 0
    if batch.used:
        width = min(descriptor[COARSE_WIDTH], LINE)
        _configure(batch, 0, min(2 * count, QUERIES), width)
        _configure(batch, 1, min(count, QUERIES), LINE)


@inline
def _configure(batch, place, queries, width):
    config = shift(batch.config, CONFIGURED * place)
    lines, sizes = shift(config, LINES_AT), as_uint16(shift(config, LINE_BYTES_AT))
    for i in range(CONFIGURED):
        config[i] = 0
    config[PALETTE] = 1
    for tile in range(CODES + 1):
        lines[tile], sizes[tile] = queries, LINE
    sizes[CODES] = width
    for tile in (ROWS, OTHER_ROWS):
        lines[tile], sizes[tile] = width // 4, LINE


@inline_once
def add_query(descriptor, batch, q, coded):
    width, place = min(descriptor[COARSE_WIDTH], LINE), q % QUERIES
    coarse = shift(batch.coarse, q // PAIRS * batch.wide * TILE_BYTES)
    for i in range(batch.wide):
        for plane in range(2):
            line = shift(as_int8(coarse), TILE_BYTES * i + LINE * (2 * (q % PAIRS) + plane))
            for d in range(width):
                line[d] = coded.planes[plane * descriptor[COARSE_WIDTH] + LINE * i + d]
    codes = shift(as_int8(batch.codes), q // QUERIES * batch.steps * TILE_BYTES)
    tail, total = shift(coded.rotated, descriptor[COARSE_WIDTH]), 0
    for i in range(batch.steps):
        line, own = shift(codes, TILE_BYTES * i + LINE * place), shift(tail, LINE * i)
        for d in range(LINE):  # in the order of `spread_bit`
            line[32 * (d // 32) + 4 * (d % 8) + d % 32 // 8] = np.int8(own[d])
            total += int(own[d])
    begin = (int(coded.factors[TAIL_TOTAL]) - total) // 2
    for i in range(BEGINS):
        begins = shift(batch.begins, (q // QUERIES * BEGINS + i) * TILE_BYTES)
        line = shift(as_int32(begins), LANES * place)
        for lane in range(LANES):
            line[lane] = ((1 << (1 << i)) - 1) * begin


@inline_once
def fill_sums(sketch, batch, first, last, step):
    """Sum level 0 of groups first .. last-1, and the levels that enough queries asked for.

    Only the last such level is summed, except in MEASURED tiles. The next tile, `step` groups
    further on, is prefetched into the second cache.
    """
    configure_tiles(batch.config)
    fill_coarse(sketch, batch, first, last)
    configure_tiles(shift(batch.config, CONFIGURED))
    least, enough = LEAST_ASKING * TILE + 3 * TILE // 2 * batch.sets, True
    for place in range(LEVEL_COUNT):
        enough = enough and batch.asked[place] >= least
        batch.ready[place], batch.asked[place] = enough, 0
        least = LEAST_ASKING * TILE
    one, two, three = batch.ready[0] != 0, batch.ready[1] != 0, batch.ready[2] != 0
    batch.ready[LEVEL_COUNT] += 1
    if batch.ready[LEVEL_COUNT] % MEASURED != 0:
        batch.ready[0], batch.ready[1] = one and not two, two and not three
        if three:
            fill_level(sketch, batch, 2, TO_LAST, first, last, step)
        elif two:
            fill_level(sketch, batch, 1, TO_MIDDLE, first, last, step)
        elif one:
            fill_level(sketch, batch, 0, FIRST, first, last, step)
    else:
        for place in range(LEVEL_COUNT):
            if batch.ready[place] != 0:
                fill_level(sketch, batch, place, FIRST + place, first, last, step)
    release_tiles()


@inline
def fill_coarse(sketch, batch, first, last):
    size = coarse_size(sketch)
    for group in range(first, last):
        _store_numbers(sketch, batch, HEAD_SCALE, group - first, coarse_numbers(sketch, group))
    for pair in range(batch.pairs):
        codes = row_of(batch.coarse, pair, batch.wide * TILE_BYTES)
        for group in range(first, last, AT_ONCE):
            g0, g1, g2, g3 = four_from(group, last)
            r0, r1 = row_of(sketch.coarse, g0, size), row_of(sketch.coarse, g1, size)
            r2, r3 = row_of(sketch.coarse, g2, size), row_of(sketch.coarse, g3, size)
            _clear0(), _clear1(), _clear2(), _clear3()
            _multiply_four(codes, r0, r1, r2, r3, batch.wide)
            _store_four(shift(batch.bases, (pair * TILE + group - first) * TILE_BYTES))


@inline
def _multiply_four(codes, r0, r1, r2, r3, steps):
    for step in range(steps):
        place = TILE_BYTES * step
        _load_codes(codes, place)
        _load_rows(r0, place)
        _load_other_rows(r1, place)
        _multiply0()
        _multiply1()
        _load_rows(r2, place)
        _load_other_rows(r3, place)
        _multiply2()
        _multiply3()


@inline
def _store_four(sums):
    _store0(sums, 0)
    _store1(sums, TILE_BYTES)
    _store2(sums, 2 * TILE_BYTES)
    _store3(sums, 3 * TILE_BYTES)


@inline
def fill_level(sketch, batch, place, kind, first, last, step):
    size, bits = batch.steps * TILE_BYTES, 0 if kind <= MIDDLE else 1 if kind <= TO_MIDDLE else 2
    codes, group_bytes = _codes_at(sketch, place)
    for group in range(first, last):
        numbers = group_numbers(codes, group_bytes, group)
        _store_numbers(sketch, batch, FIRST_SCALE + 2 * place, group - first, numbers)
    for group in range(first, last, AT_ONCE):
        for i in range(AT_ONCE):
            out = shift(batch.rows, i * size)
            _spread_group(sketch, kind, min(group + i, last - 1), 2 * batch.steps, out, step)
        for one in range(batch.sets):
            queries = row_of(batch.codes, one, size)
            begin = (one * BEGINS + bits) * TILE_BYTES
            _load0(batch.begins, begin), _load1(batch.begins, begin)
            _load2(batch.begins, begin), _load3(batch.begins, begin)
            r0, r1, r2, r3 = (
                batch.rows, shift(batch.rows, size), shift(batch.rows, 2 * size),
                shift(batch.rows, 3 * size),
            )  # fmt: skip
            _multiply_four(queries, r0, r1, r2, r3, batch.steps)
            slot = (place * batch.sets + one) * TILE + group - first
            _store_four(shift(batch.sums, slot * TILE_BYTES))


@inline
def _codes_at(sketch, place):
    one, two, three = sizes_of(sketch)
    if place == 0:
        return sketch.first, one
    return (sketch.middle, two) if place == 1 else (sketch.fine, three)


@inline
def _spread_group(sketch, kind, group, chunks, out, step):
    one, two, three = sizes_of(sketch)
    p0, p1 = row_of(sketch.first, group, one), row_of(sketch.middle, group, two)
    p2 = row_of(sketch.fine, group, three)
    p3 = shift(p2, chunks * CHUNK_BYTES)
    next0, next1 = row_of(p0, step, one), row_of(p1, step, two)
    next2 = row_of(p2, step, three)
    next3 = shift(next2, chunks * CHUNK_BYTES)
    for chunk in range(chunks):
        place = CHUNK_BYTES * chunk
        if kind not in (MIDDLE, LAST):
            prefetch_second(next0, place)
        if kind == MIDDLE or kind >= TO_MIDDLE:
            prefetch_second(next1, place)
        if kind in (LAST, TO_LAST):
            prefetch_second(next2, place)
            prefetch_second(next3, place)
        if kind == FIRST:
            spread_bit(p0, out, chunk)
        elif kind == MIDDLE:
            spread_bit(p1, out, chunk)
        elif kind == LAST:
            spread_two_bits(p2, p3, out, chunk)
        elif kind == TO_MIDDLE:
            spread_two_bits(p0, p1, out, chunk)
        else:
            spread_four_bits(p0, p1, p2, p3, out, chunk)


@inline
def _store_numbers(sketch, batch, kind, slot, numbers):
    for i in range(2):
        lanes = number_lanes(sketch, numbers, LANES * i, kind + i)
        store(batch.numbers, ((kind + i) * TILE + slot) * LANES, lanes)
