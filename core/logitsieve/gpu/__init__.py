"""Heads and decoding on a GPU: Triton kernels, the plans that launch them, and an engine."""
