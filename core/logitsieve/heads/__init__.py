"""Heads: ways to find the largest logits, one file each."""
