"""Replicas of shards on Ray, and an ingress that merges their answers."""
