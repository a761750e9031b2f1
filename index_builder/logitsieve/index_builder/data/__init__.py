"""Matrices, contexts and GGUF files that a build reads."""
