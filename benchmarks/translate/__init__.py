"""German to English by every head, greedily and by beams: `python -m benchmarks.translate`."""
