"""Compiled kernels: arrays in, arrays out; the only place with hot loops."""
