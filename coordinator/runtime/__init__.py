"""A node's synchronous work for its shards: no event loop, no clock, no socket, no wire."""
