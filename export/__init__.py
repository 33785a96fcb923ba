"""Applied entries as Parquet segments, written by a process of its own beside the node."""
