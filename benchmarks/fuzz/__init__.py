"""Fuzzing with coverage: `python -m benchmarks.fuzz`."""
