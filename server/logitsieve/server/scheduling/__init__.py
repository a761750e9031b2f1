"""Queueing, batching and running requests."""
