"""The noise of ids on a GPU: the same counters, bits and numbers as sampling/philox.py has.

Words 0 and 1 of the four are the bits of the even id of a pair, words 2 and 3 those of the odd one,
the lower word first. To choose by there is Gumbel noise in float32. Near u = 1 that needs 1 - u,
which is taken from the complement of the bits, and log(1 - v) = v log(w) / (w - 1), w being 1 - v
rounded (Goldberg 1991, What Every Computer Scientist Should Know, theorem 4): so -log u has a small
relative error wherever u lies.
"""

from __future__ import annotations

import triton
import triton.language as tl

# Of gumbel32. With logarithms within 4 units in the last place -log u is off by less than 2^-20 of
# itself, which moves its logarithm by as much; that is 37 at most, rounded within 4 2^-19.
NOISE_ERROR = tl.constexpr(2.0**-15)


@triton.jit
def random_words(seed, step, draw, pair):
    """Four uint32 of the ids 2 pair and 2 pair + 1; `seed` and `step` are uint64 held as int64."""
    low, high = (step & 0xFFFFFFFF).to(tl.uint32), ((step >> 32) & 0xFFFFFFFF).to(tl.uint32)
    return tl.philox(seed, pair.to(tl.uint32), draw, low, high)


@triton.jit
def draw_of(step, draw):
    """The number that a plan's draw has in its request: step [2] holds that of the first, too."""
    return (tl.load(step + 1) + draw).to(tl.uint32)


@triton.jit
def gumbel32(low, high):
    """float32 Gumbel noise of two words, within NOISE_ERROR."""
    u = high.to(tl.float32) * 2.0**-32 + ((low >> 12).to(tl.float32) * 2.0**-52 + 2.0**-53)
    rest = ((~low) >> 12).to(tl.float32) * 2.0**-52 + 2.0**-53
    v = (~high).to(tl.float32) * 2.0**-32 + rest
    near_one = v < 0.5
    w = tl.where(near_one, 1.0 - v, u)
    log_w = tl.log(w)
    corrected = tl.where(w < 1.0, v * log_w / (w - 1.0), v)
    return -tl.log(tl.where(near_one, corrected, -log_w))


@triton.jit
def gumbel64(low, high):
    """float64 Gumbel noise of two words: that of sampling/gumbel.py but for what log rounds."""
    return -tl.log(-tl.log(uniform64(low, high)))


@triton.jit
def uniform64(low, high):
    """A float64 in (0, 1) of two words: that of sampling/philox.py, all of it being exact."""
    return high.to(tl.float64) * 2.0**-32 + ((low >> 12).to(tl.float64) * 2.0**-52 + 2.0**-53)


@triton.jit
def noise64(seed, step, draw, ids):
    """float64 Gumbel noise of ids."""
    a, b, c, d = random_words(seed, step, draw, ids >> 1)
    odd = (ids & 1) == 1
    return gumbel64(tl.where(odd, c, a), tl.where(odd, d, b))
