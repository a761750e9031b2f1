"""What a call costs by the size of the vocabulary and the number of shards."""
