"""Routing to clusters and scanning their candidate lists."""
