"""Heads and decoding on a GPU, by PyTorch and two Triton kernels."""
