"""Build an index from a frozen softmax and the contexts it meets."""
