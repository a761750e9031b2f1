"""The on-disk index: an immutable directory of a manifest and verified, memory-mapped parts."""
