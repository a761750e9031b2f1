"""Shared parts of the heads."""
