"""Serving on Ray: replicas of shards, and an ingress that merges their answers."""
