"""What operators ask of a cluster: topics, settings, deletions, why a group rebalanced."""
