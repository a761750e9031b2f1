"""Kernels that only training needs, so that serving does not load or compile them."""
