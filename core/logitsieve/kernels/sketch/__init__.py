"""Bounds of all logits from a compressed W, and exact answers from bounds."""
