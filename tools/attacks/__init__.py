"""Attacks on what is claimed to be exact, judged by brute force: `python -m tools.attacks`."""
