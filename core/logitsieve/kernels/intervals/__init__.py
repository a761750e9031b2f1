"""Draws and log Z from intervals of logits: what is proven of all rows by few of them."""
