"""Random draws from the softmax, and its normalizer."""
