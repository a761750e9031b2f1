"""Fuzzing with coverage: `python -m tests.fuzz`."""
