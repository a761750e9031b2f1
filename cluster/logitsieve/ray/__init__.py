"""Ray: indexes in shards answered by its actors, builds spread over its workers."""
