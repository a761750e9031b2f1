"""Fuzzing with coverage: `python -m tools.fuzz`."""
