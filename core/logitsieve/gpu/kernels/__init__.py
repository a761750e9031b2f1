"""Triton kernels, one a file: launched on a GPU, or run by Triton's interpreter without one."""
