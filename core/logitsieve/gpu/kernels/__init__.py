"""Triton kernels: launched on a GPU, or run by Triton's interpreter without one."""
