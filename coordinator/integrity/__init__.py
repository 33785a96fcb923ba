"""Do all copies of a shard hold the same state? Checkpoints, their comparison, quarantine."""
