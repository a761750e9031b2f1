"""Kernels that only training needs: serving neither loads nor compiles them."""
