"""Losses over a large softmax, one file each."""
