"""A decoder's answers to tensors on a GPU, in tensors there."""

from logitsieve.gpu.decoding.decoder import GpuDecoder

__all__ = ["GpuDecoder"]
