"""Draws and log Z from intervals of logits: proofs about all rows from few of them."""
