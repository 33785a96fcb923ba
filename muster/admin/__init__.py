"""The client's calls for operators: topics, settings, deletions, causes of rebalances."""
