"""Serving on Ray: indexes in shards, each answered by replicas of its own."""
