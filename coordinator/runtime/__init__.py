"""What a node does for each shard, synchronously: no event loop, no clock, no socket, no wire."""
