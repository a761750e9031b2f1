"""Exact logits of rows of W, and the best of them."""
