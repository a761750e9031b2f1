"""Triton kernels, one a file: launched on a card, or run by Triton's interpreter without one."""
