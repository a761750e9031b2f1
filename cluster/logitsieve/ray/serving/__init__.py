"""Serving on Ray: replicas of shards, and an ingress that merges what they answer."""
