"""Ray as an engine: indexes in shards answered by its actors, and builds spread over its workers."""
