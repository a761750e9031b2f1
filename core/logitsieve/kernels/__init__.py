"""Compiled kernels: arrays in, arrays out; the only place with hot loops."""

from logitsieve.utils.environment import require

require("server", "numba")  # of all that compute: a client alone goes without
