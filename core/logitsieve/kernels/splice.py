"""A decorator for functions that become part of their caller before it is compiled.

An `inline` function is compiled, optimised and translated by itself too, with everything below it,
although nobody calls it so. That is what a first start waits for; where a long function has one
caller, `splice` saves it. A function with several callers would be typed once for each.
"""

from __future__ import annotations

import numba

splice = numba.njit(inline="always")
