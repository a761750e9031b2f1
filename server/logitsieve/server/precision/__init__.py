"""Precision of live answers, and what AUTO does about it."""
