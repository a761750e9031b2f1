"""Routing to clusters, and scans of their candidate lists."""
